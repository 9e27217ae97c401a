"""pytest plugin: `--timeout` counts machine seconds (tools/machine_time.py), which are longer on a busy machine."""

from __future__ import annotations

import signal

import pytest
from pytest_timeout import Settings, timeout_sigalrm

from tools.machine_time import machine_seconds


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool:
    """Fail the test, with the stacks of all threads, after its machine seconds."""
    deadline = machine_seconds() + settings.timeout

    def check(*_: object) -> None:
        __tracebackhide__ = True
        seconds = deadline - machine_seconds()
        if seconds <= 0:
            timeout_sigalrm(item, settings)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # pytest_timeout calls it
    signal.signal(signal.SIGALRM, check)
    check()
    return True
