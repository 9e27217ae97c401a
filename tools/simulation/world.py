"""State of one run: the server, the query, the model, and the failures."""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import redis

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.keys import origin_of
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.source.offset import Range
from spark_streams.connector.wire.connection import Connection, pack
from spark_streams.operations.verify.history import id_key
from spark_streams.operations.verify.judge import Facts, Fault, judge
from tools.servers.server import Server
from tools.simulation.actor import Actor, Ticks, describe
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.model import Entry, Model
from tools.simulation.network import Network, break_connection
from tools.simulation.options import STREAMS
from tools.simulation.reasons import Reason
from tools.simulation.setup import Plan, Step

GROUP, CONSUMER = "g", "spark"
OTHER = "other"  # group or consumer of no query: a checkpoint is refused under it
BETWEEN = "between two actions of Spark"  # where a step may be `at`
_BETWEEN = pack(BETWEEN)
# Powers that may delete a lease, or bring an older one back.
_TAKES_LEASES = (
    "flush",
    "restore",
    "promote",
    "promote_beside",
    "evict",
    "clock_ahead",
    "promote_apart",
    "restore_apart",
)
_SET_ASIDE = {"DEADLETTER", "DROPMALFORMED"}  # modes in which an entry that does not fit is no row
_EPOCH_MS = 1_700_000_000_000  # start of the producers' clock


@dataclass(frozen=True)
class Failure:
    """A failure. kind: without numbers and names, so that failures can be counted; details: all of it."""

    kind: str
    details: str


@dataclass(frozen=True)
class Outcome:
    """What a run has shown."""

    plan: Plan
    failures: list[Failure]
    batches: int
    ticks: int
    digest: int = 0  # of all commands and replies; 0 on a server that runs in its own time
    met: Mapping[str, int] = field(default_factory=dict)
    used: Counter[frozenset[str]] = field(default_factory=Counter)  # reasons that have excused something, together


@dataclass(frozen=True)
class Seen:
    """State of one stream on the server.

    position: the group's, None without a group; pending: consumer by ID; is_counted: the server knows how many entries
    the group has read.
    """

    exists: bool = False
    ids: tuple[str, ...] = ()
    position: str | None = None
    pending: dict[str, str] = field(default_factory=dict)
    consumers: frozenset[str] = frozenset()
    is_counted: bool = False

    def ours(self) -> list[str]:
        """Return the IDs that are pending for the query's consumers."""
        return [entry_id for entry_id, consumer in self.pending.items() if is_ours(consumer)]

    def of_consumer(self, name: str) -> list[str]:
        """Return the IDs that are pending for this consumer."""
        return [entry_id for entry_id, consumer in self.pending.items() if consumer == name]


def is_ours(consumer: str) -> bool:
    """Whether a consumer is the query's."""
    return consumer == CONSUMER


class World:
    """State of one run. tell: receives a line for each event; None: no story."""

    def __init__(self, server: Server, client: redis.Redis, plan: Plan, tell: Callable[[str], None] | None) -> None:
        self.server, self.client, self.plan, self._tell = server, client, plan, tell
        self.setup = plan.setup
        self.chance = random.Random(plan.setup.seed)
        self.model = Model()
        self.ticks = Ticks(self.happen)
        self.failures: list[Failure] = []
        self.met = Counter[str]()  # what was reported, and what the operator did (met.py)
        self.used = Counter[frozenset[str]]()  # reasons of entries that have excused something, together
        self.suspicions: list[Failure] = []  # what fails a run in which nothing else does
        self.connections: list[tuple[Connection, Actor | None]] = []
        self.process = 0  # number of the driver's process, as in its lease
        self.rival: int | None = None  # the same of another process that runs the query, too
        self.set_back_in = -1  # the run in which the server was set back last, or lost a commit mark
        self.has_successor = False  # that process has taken the lease
        self.keeps_leases = True  # since it began, the server has forgotten no lease
        self.threads: list[Actor] = []  # of the driver
        self.helpers: list[Actor] = []  # those that have work
        self.dying = False  # nothing happens, and no process sends anything
        self.looks_on = False  # somebody looks at the server, and nothing happens meanwhile
        self.asks = False  # the plan asks where entries are
        self.network = Network(server, self._pass_time)
        self.away = False  # whether connections have been cut or refused since the query was last at peace
        self.pace = plan.setup.pace
        self.pauses = 0
        self.connection: Connection | None = None  # the connection of this tick
        self.ms, self._used = _EPOCH_MS, set[tuple[int, int]]()  # the producers' clock
        self.raw = server.client()
        self.replicated = True  # a replica gets what is written, unless a failover is about to lose it
        self.sink_server, self.sink_client = _sink_of(server, client, plan.setup.sink_elsewhere)
        self.was_replicated = False  # the last WAIT has said so
        self.audited: dict[str, set[int]] = {}  # streams that a second group reads; entries that were removed before
        self.backup: Any = None
        self.replica: Any = None  # a backup: what the next master has
        self.powers: dict[str, Callable[[World, Step], None]] = {}
        # run.py sets these, because they need the world.
        self.query: Any = None
        self.archive = ""  # folder of the archive
        self.letters: Any = None
        self.redrives: Any = None
        self.elsewhere: Any = None
        self.sink: Any = None
        self.births: Any = None
        self.operator: Any = None

    # -- story and failures --------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """Add a line to the run's story."""
        if self._tell is not None:
            self._tell(text)

    @property
    def verbose(self) -> bool:
        """Whether there is a story."""
        return self._tell is not None

    def fail(self, kind: str, details: str) -> None:
        """Record a failure."""
        self.tell(f"!!! {kind}: {details}")
        self.failures.append(Failure(kind, details))

    def suspect(self, kind: str, details: str) -> None:
        """Record what may lose entries or write them twice. The run goes on: it may show that, which says more."""
        self.tell(f"??? {kind}: {details}")
        self.suspicions.append(Failure(kind, details))

    # -- events --------------------------------------------------------------------------------------------------

    def happen(self, step: Step) -> None:
        """Execute a power."""
        self.tell(f"      {step}")
        self.model.happened += 1
        self.births.update()
        self.keeps_leases &= step.kind not in _TAKES_LEASES
        self.has_successor &= self.keeps_leases
        if step.kind in _TAKES_LEASES:
            self.elsewhere.forget()
        self.redrives.may_meet |= step.kind in _TAKES_LEASES
        self.powers[step.kind](self, step)

    def tick(self, connection: Connection | None = None, data: bytes | memoryview | None = None) -> None:
        """Pass a moment of the library: before (with data) or after it sends bytes, or between two actions."""
        if self.dying or self.looks_on:
            return
        actor = Actor.current()
        if self.verbose and data is not None:
            self.tell(f"        {'' if self.is_driver(actor) else '(background) '}{describe(data)}")
        if actor is not None:
            actor.tick(data)
        if actor is None or actor.counts:
            self.connection = connection
            self.ticks.tick(beside=actor is not None, data=_BETWEEN if connection is None else data)
        if self.helpers and self.pace > 0 and self.is_driver(actor):
            for helper in list(self.helpers):
                self.let_work(helper, self.pace - 1)

    def is_driver(self, actor: Actor | None) -> bool:
        """Whether this is the driver's main thread."""
        return actor is None

    def let_work(self, helper: Actor, ticks: int | None = None) -> None:
        """Let a thread of the driver work. If the thread is killed, the process is."""
        helper.resume(ticks)
        if (helper.done or helper.is_idle) and helper in self.helpers:
            self.helpers.remove(helper)
        if helper.done and helper.error is not None:
            error, helper.error = helper.error, None
            raise error

    def _pass_time(self, seconds: float) -> None:
        self.elsewhere.pass_time(seconds)

    def cut(self, connections: Iterable[Connection]) -> None:
        """Close connections from outside."""
        for connection in connections:
            connection.close()

    def break_connections(self) -> None:
        """Break all connections, as a server does that restarts: what was sent is executed, its reply is lost."""
        for connection, _ in self.connections:
            break_connection(connection)
        self.away = True

    def bury_process(self) -> None:
        """Kill the driver: close its connections, end its threads, and free its lease."""
        self.dying = True
        zombies = [
            (connection, owner) for connection, owner in self.connections if owner is not None and not owner.counts
        ]
        self.cut(connection for connection, owner in self.connections if owner is None or owner.counts)
        self.connections = zombies
        for thread in self.threads:
            thread.end()
        self.threads.clear()
        self.helpers.clear()
        self.process += 1
        self.rival, self.has_successor = None, False
        self.dying = False

    # -- the server ----------------------------------------------------------------------------------------------

    @property
    def has_replica(self) -> bool:
        """Whether a replica gets what is written now."""
        return self.replicated and self.replica is None

    def wait_for_replica(self, milliseconds: int) -> int:
        """Return how many replicas have all writes, as WAIT does."""
        if not self.has_replica:
            self.network.pass_time(milliseconds / 1000)
        self.was_replicated = self.has_replica
        return int(self.was_replicated)

    def next_id(self, stream: str) -> str:
        """Return an ID for a new entry, above all that the stream ever had, and never used before."""
        self.ms += self.chance.choice([0, 1, 1, 40])
        ms, seq = self.ms, 0
        try:
            top = str(self.client.xinfo_stream(stream)["last-generated-id"])
            last_ms, last_seq = (int(part) for part in top.split("-"))
            if (last_ms, last_seq) >= (ms, seq):
                ms, seq = last_ms, last_seq + 1
        except redis.ResponseError:
            pass
        while (ms, seq) in self._used or self.model.entry_at(stream, f"{ms}-{seq}") is not None:  # also sent back
            seq += 1
        self._used.add((ms, seq))
        return f"{ms}-{seq}"

    def add(self, stream: str, count: int, value: str = "1") -> list[Entry]:
        """Add entries as a producer. value: of their field `v`, if the query has that column."""
        entries = []
        for _ in range(count):
            fields = {"n": str(len(self.model.entries) + 1), "v": value} if self.setup.has_values else None
            entry = self.model.add(stream, self.next_id(stream), fields)
            self.is_added(entry)
            self.client.xadd(stream, cast("Any", entry.fields), id=entry.id)
            entries.append(entry)
        return entries

    def is_added(self, entry: Entry) -> None:
        """Record what is documented of a new entry whose stream was created again."""
        if self.query is not None and self.query.begins_above(entry):
            self.model.excuse([entry], Reason.BELOW_THE_BEGIN)
        if self.query is not None and self.query.is_within_batch(entry):  # it is read in its place
            entry.repeat_reasons.add(Reason.READ_IN_PLACE)

    def see(self, stream: str) -> Seen:
        """Return the state of one stream on the server."""
        entries = self.client.xrange(stream)
        try:
            groups = self.client.xinfo_groups(stream)
        except redis.ResponseError:
            return Seen()
        group = next((candidate for candidate in groups if candidate["name"] == GROUP), None)
        ids = tuple(str(entry_id) for entry_id, _ in entries)
        if group is None:
            return Seen(True, ids)
        pending = self.client.xpending_range(stream, GROUP, "-", "+", 10_000) if group["pending"] else []
        consumers = frozenset(str(consumer["name"]) for consumer in self.client.xinfo_consumers(stream, GROUP))
        position = str(group["last-delivered-id"])
        is_counted = group["entries-read"] is not None
        return Seen(
            True,
            ids,
            position,
            {pending_entry["message_id"]: pending_entry["consumer"] for pending_entry in pending},
            consumers,
            is_counted,
        )

    def head(self, stream: str) -> tuple[int, str] | None:
        """Return how many entries were ever added, and the last ID; None: there is no stream."""
        try:
            head = self.client.xinfo_stream(stream)
        except redis.ResponseError:
            return None
        return int(head["entries-added"]), str(head["last-generated-id"])

    def added_to(self, stream: str, position: str) -> int | None:
        """Return how many entries were ever added up to a position, as `rstream groups` counts them; None: there is no
        stream."""
        head = self.head(stream)
        return None if head is None else head[0] - len(self.client.xrange(stream, f"({position}"))

    @functools.cached_property
    def supports_xnack(self) -> bool:
        """Whether the server has XNACK (Redis 8.8, the engine)."""
        if isinstance(self.server, ProcessServer):
            return True
        try:
            self.client.execute_command("XNACK")
        except redis.ResponseError as error:
            return "unknown command" not in str(error)
        return True

    def committed(self, stream: str) -> tuple[int, int]:
        """Return the position of the commit mark, or of the start of the last batch if there is no mark."""
        mark = self.client.get(committed_key(stream, GROUP, CONSUMER))
        if mark is None:
            held = self.query.offsets[-1]["batch"].get(stream) if self.query.offsets else None
            return id_key("0-0" if held is None else str(Range.parse(stream, held).after))
        return id_key(str(mark).split(" ", 1)[0])

    def names(self) -> list[str]:
        """Return the streams that may exist in this run."""
        return list(STREAMS[: self.setup.streams])

    # -- events of the library -----------------------------------------------------------------------------------

    def acknowledged(self, stream: str, group: str, ids: Collection[str]) -> None:
        """Record an XACK of the library, and check that it is not early."""
        if group != GROUP:
            return
        facts = []
        for entry in self.model.entries_of(stream, ids):
            entry.acknowledged = True
            if self.model.is_due(entry):
                facts.append(Facts(entry.place, acknowledged=[self.query.committed], may_miss=self._why_early(entry)))
        judgement = judge(facts)
        self.used.update(judgement.used)
        for one in judgement.found.get(Fault.EARLY, ()):
            causes = "+".join(sorted(self.model.stream(stream).ever)) or "nothing"
            details = f"{' '.join(one.place)} is acknowledged and not in the sink"
            self.fail(f"{Fault.EARLY} | after {causes} | {self.query.mode}", details)

    def _why_early(self, entry: Entry) -> frozenset[str]:
        """Return why an entry may be acknowledged that has not reached the sink."""
        if entry.removed_by:
            return frozenset({Reason.REMOVED})
        if entry.named:
            return frozenset({Reason.NAMED})
        if entry.settled or self._is_counted(entry):
            return frozenset({Reason.SETTLED})
        if not entry.fits and self.query.modes & _SET_ASIDE:  # at peace it is a dead letter, or was dropped
            return frozenset({Reason.A_LETTER})
        if self.query.was_limited:
            return frozenset({Reason.KILLS})
        return frozenset({Reason.COMES_AGAIN} if self._comes_again(entry) else ())

    def _is_counted(self, entry: Entry) -> bool:
        """Whether the group was set forward over this entry, or its task has missed it before a restored server had it
        again, and a lenient query has counted all such entries."""
        stream = self.model.stream(entry.stream)
        entries = self.model.entries_of(entry.stream)
        missed = {known.n for known in entries if known.looked_for and self.model.is_due(known)}
        groups = [group for group in (stream.skipped, missed) if entry.n in group]
        return self.query.is_lenient and any(stream.counted >= len(group) for group in groups)

    def _comes_again(self, entry: Entry) -> bool:
        """Whether the group was set back, so that it delivers the entry again."""
        position = self.see(entry.stream).position
        return position is not None and id_key(position) < entry.key

    def lost(self, stream: str, count: int) -> None:
        """Record that the library counts entries as lost, also of their retries."""
        stream = origin_of(stream)
        if stream in self.model.streams:
            self.model.stream(stream).counted += count
            self.model.stream(stream).was_lenient = True  # also if the list lacks it: a batch of it runs again
            self.model.stream(stream).runs.add(self.query.runs)

    def has_no_proof(self, stream: str, message: str) -> None:
        """Record that entries of a batch are read again, if a message says that nothing proves that they were read."""
        if "the proof that the batch was read" in message:
            for entry in self.model.entries_of(stream, self.see(stream).ours()):
                entry.repeat_reasons.add(Reason.RECORD_OLDER)


def _sink_of(server: Server, client: redis.Redis, is_elsewhere: bool) -> tuple[Server, redis.Redis]:
    """Return the server that the exactly-once sink writes to, and a client of it."""
    if not is_elsewhere:
        return server, client
    if not isinstance(server, ProcessServer):
        raise ValueError("a plan has its sink on another server, which only --server process has: leave out --server")
    another = server.another()
    return another, another.client(decode_responses=True)


def shape(error: RStreamError) -> str:
    """Return the text of an error without numbers and names."""
    text = re.sub(r"'[^']*'", "_", error.message)
    return f"{type(error).__name__}: {re.sub(r'[0-9]+(-[0-9]+)?', '#', text)[:90]}"


def counted(numbers: Iterable[int]) -> str:
    """Return numbers as text for a message."""
    return ", ".join(f"{n}×{times}" if times > 1 else str(n) for n, times in sorted(Counter(numbers).items()))
