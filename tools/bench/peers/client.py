"""A client under measurement: a process that answers requests, and what it and a server cost meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.row import NoFigureError
from tools.processor_time import ProcessorTime, processes_of
from tools.servers.server import processor_seconds

_EVERY = 0.2  # seconds between two looks at the memory
LONGEST = 200.0  # seconds that a request may take, and a row


# Figure → unit. More is better of those a second.
MOVED = dict.fromkeys(("rate", "rate of a client core", "rate of a server core"), "/s")
MOVED |= dict.fromkeys(("client MB", "server MB"), "MB")


def moved(cost: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the figures of `MOVED`, from those of `costs`."""
    cores = {f"rate of a {part} core": count / max(cost[part], 0.01) for part in ("client", "server")}
    return {"rate": count / cost["seconds"], **cores, **{name: cost[name] for name in ("client MB", "server MB")}}


class Client(contextlib.AbstractContextManager["Client"]):
    """A program that gets a line for each request, and prints `answer JSON` when it has ended."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with this object
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True,
            env={**os.environ, **variables},
        )  # fmt: skip
        self.pid = self._process.pid

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the program and its JVM at once, as a lost machine would."""
        self._end()
        self._process.communicate()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def ask(self, request: str | Mapping[str, Any]) -> Any:
        """Return the answer to a request. Raises NoFigureError: the program has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        begun, timer = time.monotonic(), threading.Timer(LONGEST, self._end)
        timer.start()
        with contextlib.ExitStack() as ended, contextlib.suppress(BrokenPipeError):
            ended.callback(timer.cancel)
            self._process.stdin.write((request if isinstance(request, str) else json.dumps(request)) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("answer "):
                    return json.loads(line.removeprefix("answer "))
        self._log.seek(0)
        log = self._log.read()
        causes = re.findall(r"^(?:Caused by: )?[\w.]+(?:Error|Exception)\b.*", log, re.MULTILINE)
        reason = " ".join(["has ended:", *causes[-1:]])
        if time.monotonic() - begun >= LONGEST:
            reason = f"took more than {LONGEST:g} s"
        raise NoFigureError(f"the program {reason}\n{str(request)[:300]}\n{log[-3000:]}")


@contextlib.contextmanager
def costs(client: Client, server: int) -> Iterator[dict[str, float]]:
    """Yield a dict that has, after the block: seconds; processor seconds of client and server, without what was
    before; the peak of both memories in MB."""
    found: dict[str, float] = {"client MB": 0.0, "server MB": 0.0}
    spent, stopped = ProcessorTime(client.pid), threading.Event()

    def look() -> None:
        while True:
            spent.seconds()
            of_client = sum(_megabytes(pid) for pid, _ in processes_of(client.pid))
            found["client MB"] = max(found["client MB"], of_client)
            found["server MB"] = max(found["server MB"], _megabytes(server))
            if stopped.wait(_EVERY):
                return

    before, server_before, begun = spent.seconds(), processor_seconds(server), time.monotonic()
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found["seconds"] = time.monotonic() - begun
        stopped.set()
        thread.join()
        found["client"], found["server"] = spent.seconds() - before, processor_seconds(server) - server_before


def _megabytes(pid: int) -> float:
    """Return the memory of a process; of pages that several share, its part."""
    with contextlib.suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0
