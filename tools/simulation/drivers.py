"""A run with two drivers on one group: each has its own consumer, checkpoint and sink. Both die and come back, and
claim from each other. It is judged by entry, over both sinks.

Nothing leaves the streams, so nothing may be lost or pending at the end. What a driver has written and not acknowledged
may come a second time if the other one claims it (docs/reference/guarantees.md). Nothing else may.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import redis

from spark_streams.connector.errors import LedgerError, RStreamError, StreamStateError
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.lease import TTL
from spark_streams.operations.verify.history import Outcome as Sent
from spark_streams.operations.verify.history import Place
from spark_streams.operations.verify.judge import Facts, Fault, judge
from tools.servers.server import Server
from tools.simulation import powers_accidents
from tools.simulation.actor import Actor
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.model import Entry
from tools.simulation.options import DEAD
from tools.simulation.patched import in_world
from tools.simulation.reasons import Reason
from tools.simulation.remedies import Operator
from tools.simulation.setup import Plan, Step, pick
from tools.simulation.sinks import Once, Recorder
from tools.simulation.spark import Query
from tools.simulation.threads import world_of
from tools.simulation.world import GROUP, Failure, Outcome, World, counted, shape

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
        if group != GROUP:
            return
        sunk = set[int]().union(*(lane.model.sunk for lane in lanes))
        any_run = set[Reason]()
        if any(lane.query.was_limited for lane in lanes):
            any_run.add(Reason.KILLS)
        if any(lane.query.is_lenient for lane in lanes):
            any_run.add(Reason.SETTLED)
        mine = self.see(stream).pending
        facts = [
            Facts(entry.place, acknowledged=[self.query.committed], may_miss=frozenset(entry.excuses | any_run))
            for entry in self.model.entries_of(stream, ids)
            if entry.n not in sunk and mine.get(entry.id) == self.name
        ]
        judgement = judge(facts)
        self.used.update(judgement.used)
        if early := judgement.named(Fault.EARLY):
            self.fail(f"{Fault.EARLY} | {self.query.mode}", f"{self.name} acknowledges {early}, which are in no sink")

    def lost(self, stream: str, count: int) -> None:
        """Nothing leaves the streams: what it counts as lost, another driver has claimed."""
        if not self.robbed:
            self.fail(
                f"{Fault.COUNTED_TOO_MUCH} | {self.query.mode}",
                f"{self.name} counts {count} entries of {stream} as lost",
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

    left = dropped


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
            self._judge_alarm(error, streams, set())
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


# -- the run -----------------------------------------------------------------------------------------------------------


NAMES = ("ann", "ben")
_MOST_ROUNDS = 12  # of both drivers, at the end
_MOST_TRIGGERS = 40  # of one driver in a round


def run(server: Server, client: redis.Redis, plan: Plan, tell: Callable[[str], None] | None = None) -> Outcome:
    """Execute a plan on an empty server with the patched library. tell: receives the story."""
    assert isinstance(server, ProcessServer), "two drivers need the plan's clock: --server process"
    server.core.begin(plan.setup.seed)
    server.core.clock.command_ns = 1_000 * plan.setup.command_us
    client.flushall()
    lanes = [Lane(server, client, plan, tell, name, 1_000_000 * index) for index, name in enumerate(NAMES)]
    for lane in lanes:
        lane.others = [other for other in lanes if other is not lane]
    _add(lanes, Step("add"), plan.setup.before)
    with in_world(lanes[0]):
        try:
            for step in plan.steps:
                lanes[0].elsewhere.renew()
                for lane in lanes:
                    lane.model.happened += 1
                DRIVEN[step.kind](lanes, step)
                if failures_of(lanes):
                    break
            else:
                _finish(lanes)
        finally:
            for lane in lanes:
                lane.kill()
                lane.query.tasks.end()
                lane.raw.close()
    ticks = sum(lane.ticks.count for lane in lanes)
    batches = sum(len(lane.query.offsets) for lane in lanes)
    met = sum((lane.met for lane in lanes), Counter[str]())
    used = sum((lane.used for lane in lanes), Counter[frozenset[str]]())
    return Outcome(plan, failures_of(lanes), batches, ticks, server.core.digest_so_far(), met, used)


# -- steps -------------------------------------------------------------------------------------------------------------


def _drive(lanes: Sequence[Lane], step: Step) -> None:
    """Let one driver work for some ticks, 0: to the end of its trigger, or to the request that the step names."""
    lane = pick([*lanes], step.choice)
    result = lane.work(step.delay if step.at else step.delay or None, step.at)
    lane.tell(f"=== {step}: {result or 'stands still'}")


def _kill(lanes: Sequence[Lane], step: Step) -> None:
    """Kill one driver where it stands."""
    lane = pick([*lanes], step.choice)
    lane.tell("is killed")
    lane.kill()


def _crash(lanes: Sequence[Lane], step: Step) -> None:
    """Kill one driver while it runs its next batch: after its first task, or after the sink has closed it."""
    pick([*lanes], step.choice).query.tasks.crashes.append(step.how >= 0.5)


def _options(lanes: Sequence[Lane], step: Step) -> None:
    """Stop one driver. It starts again with other options."""
    lane = pick([*lanes], step.choice)
    lane.kill()
    lane.query.change({**dict(step.options), "consumer": lane.name})


def _add(lanes: Sequence[Lane], step: Step, count: int | None = None) -> None:
    """Add one to eight entries."""
    names = lanes[0].names()
    added = lanes[0].add(pick(names, step.how), 1 + int(step.amount * 8) if count is None else count)
    lanes[0].tell(f"added {[entry.n for entry in added]}")
    for lane in lanes[1:]:
        lane.copy(added)


def _wait(lanes: Sequence[Lane], step: Step) -> None:
    """Nothing happens for up to four seconds: what is pending becomes idle (claimIdle)."""
    lanes[0].network.pass_time(4 * step.amount)


DRIVEN: dict[str, Callable[[Sequence[Lane], Step], None]] = {
    "drive": _drive,
    "drive_kill": _kill,
    "drive_crash": _crash,
    "drive_options": _options,
    "drive_add": _add,
    "drive_wait": _wait,
    "clock_back": lambda lanes, step: powers_accidents.clock_back(lanes[0], step),
}


# -- the end -----------------------------------------------------------------------------------------------------------


def _finish(lanes: Sequence[Lane]) -> None:
    """Let both read all there is, one after the other, and judge."""
    for lane in lanes:
        lane.tell("the end")
        lane.query.tasks.crashes.clear()
    for _ in range(_MOST_ROUNDS):
        results = []
        for lane in lanes:
            lane.kill()
            lane.network.pass_time(5)
            results.append(_drained(lane))
        if failures_of(lanes):
            return
        if set(results) == {"idle"} and not _pending(lanes[0]):
            break
    else:
        left = {name: lanes[0].see(name).pending for name in lanes[0].names()}
        lanes[0].fail(f"{Fault.PENDING} | {_modes(lanes)}", f"{results} after {_MOST_ROUNDS} rounds, pending: {left}")
        return
    for failure in _judged(lanes):
        lanes[0].fail(failure.kind, failure.details)


def _drained(lane: Lane) -> str:
    result = ""
    for _ in range(_MOST_TRIGGERS):
        result = lane.work(None, available_now=True)
        if result != "batch":
            break
    return result


def _pending(world: World) -> bool:
    return any(world.see(name).pending for name in world.names())


def _judged(lanes: Sequence[Lane]) -> Iterable[Failure]:
    facts: dict[Place, Facts] = {}
    claimed = set[int]().union(*(lane.elsewhere.claimed for lane in lanes))
    for n, entry in lanes[0].model.entries.items():
        found = facts[entry.place] = Facts(entry.place, ("p", n), Sent.OK, is_bad=True)
        of_lanes = [lane.model.entries[n] for lane in lanes]
        found.may_miss = frozenset().union(*(one.excuses for one in of_lanes))
        found.may_repeat = frozenset().union(*(one.repeat_reasons for one in of_lanes))
        found.may_repeat |= {Reason.CLAIMED} if n in claimed else set()
        found.may_reorder = frozenset({Reason.TWO_QUERIES})
    for fields in (fields for _, fields in lanes[0].client.xrange(DEAD)):
        place = fields["dl.stream"], fields["dl.id"]
        facts.setdefault(place, Facts(place)).letters += 1
    for row in (row for lane in lanes for row in lane.sink.rows()):
        facts.setdefault(row.place, Facts(row.place, row.value)).rows.append(row)
    judgement = judge(facts.values())
    lanes[0].used.update(judgement.used)
    for fault in judgement.found:
        by_lane = {lane.name: counted(sorted(lane.written())) for lane in lanes}
        yield Failure(f"{fault} | {_modes(lanes)}", f"{judgement.named(fault)}; written: {by_lane}")


def _modes(lanes: Sequence[Lane]) -> str:
    return " / ".join(lane.query.mode for lane in lanes)
