"""A Spark driver as a process that can be killed: Python, its JVM and all processes below them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 300.0  # seconds that anything may take on a busy machine


class Driver:
    """A driver in a session of its own. As a context manager it leaves no process behind.

    command: starts it in `folder`; environment: its whole environment; log: file of its output.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL the driver and its JVM at once, then all remaining processes of its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # Python workers have their own process groups. They end without the JVM, but not at once.
        deadline = time.monotonic() + PATIENCE
        while remaining := [pid for pid, _ in self.processes()]:
            assert time.monotonic() < deadline, f"processes {remaining} do not end"
            for pid in remaining:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def processes(self) -> list[tuple[int, str]]:
        """Return pid and command line of every living process of the session. Only Linux lists them."""
        processes = []
        for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.process.pid and state not in "ZX":
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    processes.append((int(entry.name), command))
        return processes

    def log(self) -> str:
        """Return the end of the driver's output."""
        return self._log.read_text(errors="replace")[-4000:]
