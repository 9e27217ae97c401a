"""P7, P8: long backlogs, pending entries of other consumers, large batches.

P8 starts `python -m tools.bench.scale PORT BATCH COUNT` to measure the memory of a separate process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tools.bench.client import RawClient, request
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.spark import load, rate_of_batches, stream
from tools.bench.spark import running as running_query

_LONG = 10_500_000
_SHORT = 700_000
_BATCH = 100_000
_BATCHES = 5
_FOREIGN = 1_000_000
_HUGE = 10_000_000
_SMALL_BATCHES = 20
_MIB = 1 << 20


def rate(server: Running, name: str, foreign: int = 0, batch: int = _BATCH, **options: int) -> float:
    """Return entries per second of a few batches from a stream's start, with `foreign` entries pending for another."""
    client = server.client()
    client.call("XGROUP", "CREATE", name, "g", "0")
    leave_pending(client, name, "other", foreign)
    try:
        return rate_of_batches(stream(server, name, maxEntriesPerTrigger=batch, **options), _BATCHES)
    finally:
        client.call("XGROUP", "DESTROY", name, "g")
        client.close()


def leave_pending(client: RawClient, name: str, consumer: str, count: int) -> None:
    """Deliver the next `count` entries of group `g`, rounded down to 10,000, to a consumer, unacknowledged."""
    client.call("XGROUP", "CREATECONSUMER", name, "g", consumer)
    for _ in range(count // 10_000):
        read = request("XREADGROUP", "GROUP", "g", consumer, "COUNT", 10_000, "STREAMS", name, ">")
        client.socket.sendall(request("CLIENT", "REPLY", "SKIP") + read)
    client.call("PING")


def memory(server: Running, batch: int, count: int) -> dict[str, int]:
    """Return peak bytes of Python and of the JVM in a separate process that reads `count` batches."""
    client = server.client()
    client.call("XGROUP", "CREATE", "long", "g", "0")
    client.close()
    command = [sys.executable, "-m", "tools.bench.scale", str(server.port), str(batch), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    client = server.client()
    client.call("XGROUP", "DESTROY", "long", "g")
    client.close()
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    peaks: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The server runs while the stack is open."""
    server = stack.enter_context(running("redis-server"))

    @functools.cache
    def loaded() -> Running:
        load(server, "long", _LONG)
        load(server, "short", _SHORT)
        return server

    @functools.cache
    def memories() -> tuple[dict[str, int], dict[str, int]]:
        return memory(loaded(), _HUGE // 100, _SMALL_BATCHES), memory(loaded(), _HUGE, 1)

    def peak_growth(kind: str) -> Callable[[], float]:
        return lambda: (memories()[1][kind] - memories()[0][kind]) / _MIB

    batches = f"local[2], noop, {_BATCHES} batches of {_BATCH:,} after a first batch"
    peak = f"VmHWM: one batch of {_HUGE:,} less {_SMALL_BATCHES} of {_HUGE // 100:,}, each in separate processes"
    return [
        Row("P7", "10⁷ entries of backlog", f"{batches}; peer: 10⁵ remain at the end", "/s", 0.9,
            lambda: rate(loaded(), "long"), lambda: rate(loaded(), "short"), "10⁵ of backlog", rounds=3),
        Row("P7", "10⁶ foreign pending", f"{batches}, after the pending entries", "/s", 0.9,
            lambda: rate(loaded(), "long", _FOREIGN), lambda: rate(loaded(), "long"), "none pending", rounds=3),
        Row("P8", "memory of huge batches, Python", f"driver and workers; {peak}", "MiB", 200, peak_growth("python"),
            at_least=False, rounds=1),
        Row("P8", "memory of huge batches, JVM", f"2 GB of heap; {peak}", "MiB", None, peak_growth("java"),
            at_least=False, rounds=1),
    ]  # fmt: skip


# -- P8, in a separate process -----------------------------------------------------------------------------------


def _read(port: int, batch: int, count: int) -> None:
    """Read the batches, and print the peak memory of this process and its children."""
    peaks = Peaks()
    frame = stream(Running("redis-server", port, 0), "long", maxEntriesPerTrigger=batch)
    with running_query(frame, processingTime="0 seconds") as query:
        while True:
            error, progress = query.exception(), query.lastProgress
            if error is not None:
                raise error
            if (
                progress is not None and progress.batchId >= count
            ):  # the batch after the last one, so that the last one is committed
                break
            peaks.ended.wait(0.1)
        print(json.dumps(peaks.end()))


class Peaks(threading.Thread):
    """Peak resident size of this process (the driver) and of each process below it, read while they run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self._peaks: dict[int, tuple[str, int]] = {}
        self.start()

    def run(self) -> None:
        while not self.ended.wait(0.2):
            self._record(os.getpid())

    def end(self) -> dict[str, int]:
        """Return bytes by kind of process."""
        self._record(os.getpid())
        self.ended.set()
        return {
            kind: sum(size for process_kind, size in self._peaks.values() if process_kind == kind)
            for kind in ("python", "java")
        }

    def _record(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # a process may end at any moment
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            name = lines["Name"].strip()
            # The JVM starts a process for each chmod of a checkpoint's file: not Spark's memory.
            is_spark = name.startswith("python") or (name == "java" and int(lines["PPid"]) == os.getpid())
            if not is_spark or "VmHWM" not in lines:
                return
            self._peaks[pid] = "java" if name == "java" else "python", int(lines["VmHWM"].split()[0]) * 1024
            for task in Path(f"/proc/{pid}/task").iterdir():
                for child in (task / "children").read_text().split():
                    self._record(int(child))


if __name__ == "__main__":
    _read(*map(int, sys.argv[1:]))
