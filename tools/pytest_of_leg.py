"""What the pytest of a leg does in addition (-p tools.pytest_of_leg).

It counts the tests that ran, and those that other legs of scripts/test have. `--timeout` counts machine seconds.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from pytest_timeout import Settings, timeout_sigalrm

from tools.machine_time import machine_seconds

TURNS_LEG = "--both"  # the leg that runs the tests of all turns, on both servers
# Legs that run the tests with a marker, which all others leave out.
LEG_OF_MARKER = {
    "kills": "--kills",
    "cluster": "--cluster",
    "upgrade": "--upgrade",
    "long": "--long",
    "extras": "--extras",
    "browser": "--console",
    "network": "--network",
    "peers": "--peers",
    "debezium": "--debezium",
    "clients": "--clients",
}
_NOT_RUN = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--counts",
        metavar="FILE",
        help="write JSON into this file: how many tests ran, and how many did not, by their leg of scripts/test",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_NOT_RUN] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        legs = [leg for marker, leg in LEG_OF_MARKER.items() if item.get_closest_marker(marker)]
        item.config.stash[_NOT_RUN][next(iter(legs), TURNS_LEG)] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if file := session.config.getoption("--counts"):
        counts = {"ran": session.testscollected, "not_run": session.config.stash[_NOT_RUN]}
        Path(file).write_text(json.dumps(counts))


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
