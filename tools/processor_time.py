"""Processor time of all processes that a program starts, and theirs: user and system, in seconds.

The system adds the times of a process to those of its parent when the parent waits for its end. Two kinds of processes
would be missed, and tests of Spark spend most of their time in them:

- A process whose parent has ended, as the JVM of a session: the program adopts it, and waits for it.
- A process whose parent ignores its end, as Spark's daemon of Python processes: the times that it had when it was last
  seen are kept.

Linux only: other systems miss both.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

EVERY = 0.5  # seconds between two looks: one takes some milliseconds
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


class Seen(NamedTuple):
    """A process as the system shows it. ticks: its own time, and that of processes that it has waited for."""

    parent: int
    started: int
    ticks: int


class ProcessorTime:
    """Processor time of this process and of everything below it, from the call of `adopt` on."""

    def __init__(self) -> None:
        self._before = 0.0
        self._adopts = False
        self._next_look = 0.0
        self._unwaited = dict[tuple[int, int], int]()  # pid and start of a child that nothing waits for → ticks

    def adopt(self) -> None:
        """Become the parent of each process below this one whose parent ends."""
        self._before = sum(os.times()[:4])
        if sys.platform == "linux":
            self._adopts = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def look(self, mine: Collection[int]) -> None:
        """Do what is to be done from time to time; nothing before `adopt`. mine: children that other code waits for."""
        if self._adopts:
            self._reap(mine)
            if time.monotonic() >= self._next_look:
                self._note_unwaited()
                self._next_look = time.monotonic() + EVERY

    def seconds(self) -> float:
        """Return the seconds until now, also of processes that have not ended."""
        there = self._note_unwaited() if self._adopts else {}
        alive = sum(process.ticks for pid, process in there.items() if (pid, process.started) not in self._unwaited)
        return sum(os.times()[:4]) - self._before + (alive + sum(self._unwaited.values())) / TICKS

    def _reap(self, mine: Collection[int]) -> None:
        with contextlib.suppress(ChildProcessError):  # there is no child
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in mine:
                    return
                os.waitpid(ended.si_pid, 0)

    def _note_unwaited(self) -> dict[int, Seen]:
        """Return all processes below this one."""
        seen = dict(processes_below())
        parents = {process.parent for process in seen.values()} & seen.keys()
        ignoring = {pid for pid in parents if _ignores_ends(pid)}
        for pid, process in seen.items():
            if process.parent in ignoring:
                self._unwaited[pid, process.started] = process.ticks
        return seen


def processes_below() -> Iterator[tuple[int, Seen]]:
    """Yield the pid and the times of each process below this one."""
    everything = dict[int, Seen]()
    children = dict[int, list[int]]()
    for name in filter(str.isdigit, os.listdir(_PROC)):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (_PROC / name / "stat").read_bytes().rpartition(b")")[2].split()
            everything[int(name)] = Seen(int(words[1]), int(words[19]), sum(map(int, words[11:15])))
            children.setdefault(int(words[1]), []).append(int(name))
    below = list(children.get(os.getpid(), ()))
    for pid in below:
        below += children.get(pid, ())
        yield pid, everything[pid]


def _ignores_ends(pid: int) -> bool:
    """Whether a process ignores the end of its children, so that the system counts them nowhere."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)
    return False
