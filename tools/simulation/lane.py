"""One of two drivers that share a group: a world of its own, with its own consumer, checkpoint and sink, on one server
and with the same entries as the other. It works a few ticks at a time, while the other one stands still."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import redis

from spark_streams.connector.errors import LedgerError, RStreamError, StreamStateError
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.wire.connection.connection import Connection
from spark_streams.connector.wire.lease import TTL
from tools.servers.server import Server
from tools.simulation.actor import Actor
from tools.simulation.background import world_of
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.model import Entry
from tools.simulation.once import Once
from tools.simulation.recorder import Recorder
from tools.simulation.remedies import Operator
from tools.simulation.setup import Plan
from tools.simulation.spark import Query
from tools.simulation.world import GROUP, Failure, World, shape

_RENEWAL = TTL / 3000  # seconds


class Lane(World):
    """A driver. name: its consumer; pid: number of its first process; robbed: numbers of entries that others have
    claimed from it since it was idle; others: the other drivers."""

    def __init__(
        self, server: Server, client: redis.Redis, plan: Plan, tell: Callable[[str], None] | None, name: str, pid: int
    ) -> None:
        super().__init__(server, client, plan, None if tell is None else lambda text: tell(f"{name} | {text}"))
        self.name, self.process = name, pid
        self.others: list[Lane] = []
        self.robbed = set[int]()
        self.births = _NoBirths()
        self.operator = _LaneOperator(self)
        self.elsewhere = self.redrives = Beside(self)
        self.sink = Once(self, f"out:{name}") if plan.setup.sink == "once" else Recorder(self)
        self.query = _LaneQuery(self, {**plan.setup.options, "consumer": name})
        self._main: Actor | None = None
        self._is_available_now = False

    # -- its process ---------------------------------------------------------------------------------------------

    def work(self, ticks: int | None, at: str = "", available_now: bool = False) -> str:
        """Let the driver work for so many ticks, or to the end of its trigger. at: only ticks before a request with
        this text count. Return how the trigger ended; empty: it goes on next time."""
        world_of["now"] = self
        if self._main is None or self._main.done:
            self._is_available_now = available_now
            self._main = Actor(lambda: self.query.advance(self._is_available_now), counts=True)
        self._main.resume(ticks, at)
        if not self._main.done:
            return ""
        if self._main.error is not None:
            raise self._main.error
        if self._main.result == "idle":
            self.robbed.clear()
            self.operator.at_peace()
        return str(self._main.result)

    def kill(self) -> None:
        """SIGKILL, where it stands."""
        world_of["now"] = self
        if self._main is not None and not self._main.done:
            self._main.end()
        self.query.die()

    def tick(self, connection: Connection | None = None, data: bytes | memoryview | None = None) -> None:
        """Pass a moment. If a thread beside the driver's works, the whole process stands still with it."""
        if not self.dying and self._main is not None and not self.is_driver(Actor.current()):
            self._main.tick(data)
        super().tick(connection, data)

    def is_driver(self, actor: Actor | None) -> bool:
        """Whether this is the driver's main thread."""
        return actor is self._main

    def sessions(self, streams: Iterable[str]) -> Iterator[str]:
        """Yield the sessions of its process, of its leases on these streams."""
        for name in streams if self.query.running else ():
            lease = json.loads(self.client.get(lease_key(name, GROUP, self.name)) or "{}")
            if lease.get("pid") == self.process:
                yield lease["session"]

    # -- entries -------------------------------------------------------------------------------------------------

    def copy(self, entries: Iterable[Entry]) -> None:
        """Take entries that were added to the streams into its own model."""
        for entry in entries:
            self.model.add(entry.stream, entry.id, entry.fields)

    def written(self) -> set[int]:
        """Return the numbers of the entries in its sink."""
        return {row.value[1] for row in self.sink.rows()}

    def acknowledged(self, stream: str, group: str, ids: Iterable[str]) -> None:
        """Check that what it acknowledges is in a sink."""
        lanes = [self, *self.others]
        if group != GROUP or any(lane.query.was_limited or lane.query.is_lenient for lane in lanes):
            return
        sunk = set[int]().union(*(lane.model.sunk for lane in lanes))
        early = [entry for entry in self.model.entries_of(stream, ids) if entry.n not in sunk and not entry.excuses]
        mine = self.see(stream).pending
        if early := [entry for entry in early if mine.get(entry.id) == self.name]:
            details = f"{self.name} acknowledges {[entry.n for entry in early]} of {stream}, which are in no sink"
            self.fail(f"early | {self.query.mode}", details)

    def lost(self, stream: str, count: int) -> None:
        """Nothing leaves the streams: what it counts as lost, another driver has claimed."""
        if not self.robbed:
            self.fail(
                f"counted too much | {self.query.mode}", f"{self.name} counts {count} entries of {stream} as lost"
            )


class Beside:
    """The other drivers, as one of them meets them (in place of Elsewhere and Redrives). allowed: numbers of entries
    that may be in the sinks twice: they were written and not acknowledged when another driver claimed them."""

    living = True  # entries that it claims may be somebody's
    allowed = frozenset[int]()

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._owners: dict[str, str] = {}
        self.claimed = set[int]()

    def lives(self, pid: int) -> bool:
        """Whether this is the process of another driver that runs."""
        return any(other.query.running and other.process == pid for other in self._lane.others)

    def has_lease(self, streams: Iterable[str]) -> bool:
        """Whether another process has the lease of this driver's consumer: none ever has."""
        return False

    def pass_time(self, seconds: float) -> None:
        """Move the plan's clock. Drivers that live renew their sessions meanwhile."""
        server = self._lane.server
        assert isinstance(server, ProcessServer)
        while seconds > 0:
            server.core.clock.sleep(min(seconds, _RENEWAL))
            seconds -= _RENEWAL
            self.renew()

    def renew(self) -> None:
        """Let all drivers that live renew their sessions."""
        for lane in (self._lane, *self._lane.others):
            for session in [*lane.sessions(lane.query.reads())]:
                lane.client.pexpire(session, TTL)

    def claims(self, stream: str, ids: Iterable[str]) -> None:
        """Note whose these entries are that the driver is about to claim."""
        pending = self._lane.see(stream).pending
        self._owners = {entry: pending[entry] for entry in ids if entry in pending}

    def has_claimed(self, stream: str, ids: Iterable[str]) -> None:
        """Record what a claim took from another driver. It must take nothing of one that runs."""
        lane, pending = self._lane, self._lane.see(stream).pending
        for other in lane.others:
            theirs = [e for e in ids if self._owners.get(e) == other.name and pending.get(e) == lane.name]
            if not theirs:
                continue
            numbers = {entry.n for entry in lane.model.entries_of(stream, theirs)}
            other.robbed |= numbers
            self.claimed |= numbers & other.written()
            if any(lane.client.exists(session) for session in other.sessions([stream])):
                details = f"{lane.name} has claimed {sorted(numbers)} of {other.name}, which runs"
                lane.fail(f"claimed from a running query | {lane.query.mode}", details)


class _NoBirths:
    """In place of Births: all streams are read from their first entry on."""

    def update(self, begun: bool = False) -> None:
        """Nobody asks where the group has begun."""

    def dropped(self, name: str) -> None:
        """The same."""


class _LaneQuery(Query):
    @property
    def id(self) -> str:
        """Spark's ID of the query."""
        return f"{self.options['consumer']}{self.epoch}"


class _LaneOperator(Operator):
    """Accepts errors about entries that another driver has claimed, and does what they say."""

    _lane: Lane

    def __init__(self, lane: Lane) -> None:
        super().__init__(lane)
        self._lane = lane

    def handle(self, error: RStreamError, had_successor: bool = False) -> None:
        """Judge the error that ended the driver's query, and apply a remedy."""
        lane, query, text = self._lane, self._lane.query, error.message
        streams = [name for name in lane.names() if name in text]
        if not isinstance(error, StreamStateError):
            lane.fail(f"unexpected | {shape(error)} | {query.mode}", text)
            return
        if not lane.robbed:
            lane.fail(f"false alarm | {shape(error)} | {query.mode}", text)
            return
        if query.is_lenient and not isinstance(error, LedgerError):
            lane.fail(f"a lenient query stops | {shape(error)} | {query.mode}", text)
            return
        query.tasks.expect_others()
        self._count(error, streams)
        self._remedy(error, text, streams)


def failures_of(lanes: Iterable[Lane]) -> list[Failure]:
    """Return the failures of all of them."""
    return [failure for lane in lanes for failure in lane.failures]
