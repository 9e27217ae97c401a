"""A stream, its producer, its trimming and one group over time, by a clock of its own: surveys come out.

The truth is known here: when trimming takes the first entry that the group has not acknowledged."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from spark_streams.connector.lag.survey import ConsumerLag, GroupLag, StreamSummary, Survey

NODE = 100
BEGAN_MS = 1_700_000_000_000
Trim = Callable[["Life"], int]  # up to which number entries may go


@dataclass
class Life:
    """rate: entries per second, which vary; trim: the rule; batch_s: between two batches of the group; reads: entries
    per second that it can read; stalls_s: when it stops, None: never; nodes: whether whole nodes are removed."""

    seed: int
    trim: Trim
    rate: float = 1000.0
    batch_s: float = 2.0
    reads: float = 1500.0
    stalls_s: float | None = None
    nodes: int = NODE
    now_s: float = 0.0
    added: int = 0
    removed: int = 0
    read: int = 0
    lost_s: float | None = None
    times: list[int] = field(default_factory=list)  # ID of each entry, in ms

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._next_batch, self._pace = 0.0, 1.0

    def step(self, seconds: float = 0.1) -> None:
        """Let time pass."""
        self.now_s += seconds
        self._pace = min(1.1, max(0.9, self._pace + self.random.uniform(-0.02, 0.02)))  # the rate drifts
        new = max(0, round(self.rate * self._pace * seconds * self.random.uniform(0.5, 1.5)))
        self.times += [self.now_ms] * new
        self.added += new
        is_alive = self.stalls_s is None or self.now_s < self.stalls_s
        if is_alive and self.now_s >= self._next_batch:
            self._next_batch = self.now_s + self.batch_s * self.random.uniform(0.8, 1.2)
            self.read = min(self.added, max(self.read, self.removed) + round(self.reads * self.batch_s))
        may_go = min(self.trim(self), self.added)
        while self.removed + self.nodes <= may_go:
            self.removed += self.nodes
        if self.lost_s is None and self.removed > self.read:
            self.lost_s = self.now_s

    def id_of(self, number: int) -> str:
        """The ID of an entry."""
        return f"{self.times[number]}-{number}"

    @property
    def now_ms(self) -> int:
        return BEGAN_MS + round(self.now_s * 1000)

    def survey(self) -> Survey:
        """What the server says now."""
        last = self.id_of(self.added - 1)
        first = self.id_of(self.removed) if self.removed < self.added else ""
        needed = max(self.read, self.removed)
        lag = self.added - needed
        stream = StreamSummary("s", self.added - self.removed, self.added, last, first)
        age = self.now_ms - self.times[needed] if lag else 0
        position = self.id_of(self.read - 1) if self.read else "0-0"
        consumers = (ConsumerLag("c", 0, 0),)
        group = GroupLag("s", "g", lag, False, age, 0, None, position, self.read, consumers)
        return Survey(self.now_ms, (stream,), (group,))

    def surveys(self, until_s: float, every_s: float = 15.0) -> Iterator[Survey]:
        """Yield a survey at each interval."""
        due = self.now_s + every_s
        while self.now_s < until_s:
            self.step()
            if self.now_s >= due:
                due += every_s
                yield self.survey()


def maxlen(limit: int) -> Trim:
    """MAXLEN ~ limit."""
    return lambda life: life.added - limit


def older_than(seconds: float) -> Trim:
    """MINID ~ of a time."""

    def trim(life: Life) -> int:
        oldest, at = life.now_ms - seconds * 1000, life.removed
        while at < life.added and life.times[at] < oldest:
            at += 1
        return at

    return trim


def acked(every_s: float = 10.0) -> Trim:
    """Only what the group has acknowledged, looked at every few seconds."""
    due, allowed = [0.0], [0]

    def trim(life: Life) -> int:
        if life.now_s >= due[0]:
            due[0], allowed[0] = life.now_s + every_s, life.read
        return allowed[0]

    return trim


def never(life: Life) -> int:
    """No trimming."""
    return 0
