"""Everything of one run: the server, the query, the model, and what has been found wrong."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from spark_streams.errors import RStreamError
from spark_streams.model.commit_mark import committed_key
from spark_streams.wire.connection.connection import Connection
from tools.chaos.history import id_key
from tools.servers.server import Server
from tools.simulation import faces
from tools.simulation.actor import Actor
from tools.simulation.model import Entry, Model
from tools.simulation.plan import STREAMS, Plan
from tools.simulation.step import Step
from tools.simulation.ticks import Ticks

GROUP, CONSUMER = "g", "spark"
_EPOCH_MS = 1_700_000_000_000  # where the producers' clock begins


@dataclass(frozen=True)
class Failure:
    """Something is wrong. kind: what, without numbers and names, so that failures can be counted; told: all of it."""

    kind: str
    told: str


@dataclass(frozen=True)
class Seen:
    """One stream as the server has it. position: the group's, None where there is no group; pending: consumer by id;
    is_counted: the server knows how many entries the group has read."""

    exists: bool = False
    ids: tuple[str, ...] = ()
    position: str | None = None
    pending: dict[str, str] = field(default_factory=dict)
    consumers: frozenset[str] = frozenset()
    is_counted: bool = False

    def ours(self) -> list[str]:
        """Ids that are pending for the query's consumers."""
        return [one for one, consumer in self.pending.items() if is_ours(consumer)]

    def of_consumer(self, name: str) -> list[str]:
        """Ids that are pending for this consumer."""
        return [one for one, consumer in self.pending.items() if consumer == name]


def is_ours(consumer: str) -> bool:
    """Whether a consumer is the query's own, or one of its claims or pieces."""
    return consumer == CONSUMER or consumer.startswith(f"{CONSUMER}~")


class World:
    """plan: what is to happen; tell: where steps are told as they happen, None: nowhere."""

    def __init__(self, server: Server, client: redis.Redis, plan: Plan, tell: Callable[[str], None] | None) -> None:
        self.server, self.client, self.plan, self._tell = server, client, plan, tell
        self.setup = plan.setup
        self.chance = random.Random(plan.setup.seed)
        self.model = Model()
        self.ticks = Ticks(self.happen)
        self.failures: list[Failure] = []
        self.connections: list[tuple[Connection, Actor | None]] = []
        self.process = 0  # the driver's, as its lease has it
        self.helpers: list[Actor] = []  # threads of the driver
        self.dying = False
        self.unreachable = 0  # how many tries to connect are refused
        self.away = False  # whether connections have been cut or refused since the query was last at peace
        self.pauses = 0
        self.at: Connection | None = None  # the one that this tick is about
        self.ms, self._used = _EPOCH_MS, set[tuple[int, int]]()  # the producers' clock
        self.raw = server.client()
        self.backup: Any = None
        self.powers: dict[str, Callable[[World, Step], None]] = {}
        # Made by run.py: they know the world, too.
        self.query: Any = None
        self.sink: Any = None
        self.births: Any = None
        self.operator: Any = None

    # -- what is told --------------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """A line of the run's story."""
        if self._tell is not None:
            self._tell(text)

    @property
    def verbose(self) -> bool:
        """Whether anybody listens."""
        return self._tell is not None

    def fail(self, kind: str, told: str) -> None:
        """Something is wrong."""
        self.tell(f"!!! {kind}: {told}")
        self.failures.append(Failure(kind, told))

    # -- what happens --------------------------------------------------------------------------------------------

    def happen(self, step: Step) -> None:
        """A power is used."""
        self.tell(f"      {step}")
        self.model.happened += 1
        self.births.look()
        self.powers[step.kind](self, step)

    def tick(self, connection: Connection | None = None, data: bytes | memoryview | None = None) -> None:
        """A moment of the product's: before (with data) or after bytes leave by a connection, or between two things."""
        if self.dying:
            return
        actor = Actor.current()
        if self.verbose and data is not None:
            self.tell(f"        {'' if actor is None else '(beside) '}{faces.of(data)}")
        if actor is not None:
            actor.tick()
        if actor is None or actor.counts:
            self.at = connection
            self.ticks.tick()
        if actor is None and self.setup.pace > 0:
            for helper in list(self.helpers):
                self.let_work(helper, self.setup.pace - 1)

    def let_work(self, helper: Actor, ticks: int | None = None) -> None:
        """A thread of the driver goes on; where it is killed, the process is."""
        helper.resume(ticks)
        if helper.done:
            if helper in self.helpers:
                self.helpers.remove(helper)
            if helper.error is not None:
                error, helper.error = helper.error, None
                raise error

    def cut(self, connections: Iterable[Connection]) -> None:
        """Close connections from outside."""
        for one in connections:
            one.close()

    def bury_process(self) -> None:
        """The driver is dead: its connections are closed, its threads gone, and its lease is anybody's."""
        self.dying = True
        zombies = [(one, owner) for one, owner in self.connections if owner is not None and not owner.counts]
        self.cut(one for one, owner in self.connections if owner is None or owner.counts)
        self.connections = zombies
        for helper in self.helpers:
            helper.end()
        self.helpers.clear()
        self.process += 1
        self.dying = False

    # -- the server ----------------------------------------------------------------------------------------------

    def next_id(self, stream: str) -> str:
        """An id for a new entry, above all that the stream has had, and never given before."""
        self.ms += self.chance.choice([0, 1, 1, 40])
        ms, seq = self.ms, 0
        try:
            top = str(self.client.xinfo_stream(stream)["last-generated-id"])
            last_ms, last_seq = (int(one) for one in top.split("-"))
            if (last_ms, last_seq) >= (ms, seq):
                ms, seq = last_ms, last_seq + 1
        except redis.ResponseError:
            pass
        while (ms, seq) in self._used:
            seq += 1
        self._used.add((ms, seq))
        return f"{ms}-{seq}"

    def add(self, stream: str, count: int) -> list[Entry]:
        """A producer adds so many entries."""
        made = []
        for _ in range(count):
            entry = self.model.add(stream, self.next_id(stream))
            self.client.xadd(stream, {"n": entry.n}, id=entry.id)
            made.append(entry)
        return made

    def see(self, stream: str) -> Seen:
        """One stream as the server has it."""
        entries = self.client.xrange(stream)
        try:
            groups = self.client.xinfo_groups(stream)
        except redis.ResponseError:
            return Seen()
        group = next((one for one in groups if one["name"] == GROUP), None)
        ids = tuple(str(one) for one, _ in entries)
        if group is None:
            return Seen(True, ids)
        pending = self.client.xpending_range(stream, GROUP, "-", "+", 10_000) if group["pending"] else []
        consumers = frozenset(str(one["name"]) for one in self.client.xinfo_consumers(stream, GROUP))
        position = str(group["last-delivered-id"])
        is_counted = group["entries-read"] is not None
        return Seen(True, ids, position, {one["message_id"]: one["consumer"] for one in pending}, consumers, is_counted)

    def committed(self, stream: str) -> tuple[int, int]:
        """Up to where the query has marked the stream as committed; the start of its last batch where it has not."""
        mark = self.client.get(committed_key(stream, GROUP, CONSUMER))
        if mark is None:
            held = self.query.offsets[-1]["batch"].get(stream, {}) if self.query.offsets else {}
            return id_key(held.get("after") or "0-0")
        return id_key(str(mark).split(" ", 1)[0])

    def names(self) -> list[str]:
        """The streams that this run may have."""
        return list(STREAMS[: self.setup.streams])

    # -- what the model learns of the product --------------------------------------------------------------------

    def acknowledged(self, stream: str, group: str, ids: Collection[str]) -> None:
        """The product sends XACK."""
        options = self.query.options
        if group != GROUP:
            return
        for one in self.model.of(stream, ids):
            one.acknowledged = True
            if not self.model.is_due(one) or one.gone or one.named or one.settled or self._is_counted(one):
                continue
            if options.get("delivery") == "at-most-once":
                self.query.given_up.append(one)
            elif not self.query.was_limited and not self._comes_again(one):
                causes = "+".join(sorted(self.model.stream(stream).ever)) or "nothing"
                self.fail(
                    f"early | after {causes} | {self.query.mode}",
                    f"entry {one.n} ({stream} {one.id}) is acknowledged and not in the sink",
                )

    def _is_counted(self, one: Entry) -> bool:
        """Whether a lenient query has counted all entries over which the group was set forward, and this is one."""
        stream = self.model.stream(one.stream)
        return self.query.is_lenient and one.n in stream.skipped and stream.counted >= len(stream.skipped)

    def _comes_again(self, one: Entry) -> bool:
        """Whether the group has been set back, so that it delivers the entry once more."""
        position = self.see(one.stream).position
        return position is not None and id_key(position) < one.key

    def lost(self, stream: str, count: int) -> None:
        """The product counts entries as lost."""
        if stream in self.model.streams:
            self.model.stream(stream).counted += count


def shape(error: RStreamError) -> str:
    """An error without its numbers and names."""
    text = re.sub(r"'[^']*'", "_", error.message)
    return f"{type(error).__name__}: {re.sub(r'[0-9]+(-[0-9]+)?', '#', text)[:90]}"


def counted(numbers: Iterable[int]) -> str:
    """Numbers for a message."""
    return ", ".join(f"{n}×{times}" if times > 1 else str(n) for n, times in sorted(Counter(numbers).items()))
