"""One life: who is there, what each does, and a command that may be interrupted or killed."""

from __future__ import annotations

import json
import random
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from click.testing import CliRunner

from spark_streams.connector.wire.lease import TTL
from spark_streams.operations.cli import main
from tools.lives import older
from tools.lives.processes import Place
from tools.lives.query import Query
from tools.lives.state import Change, Key, State, all_places, change, look
from tools.simulation.actor import Actor, Killed
from tools.simulation.in_process.server import ProcessServer

DEAD = "dead"
REPAIRED = "repaired"  # where dead letters are sent besides
CLIENTS = ("bob", "eve")
PAUSES = (1, 40, 70, 4_000, 100_000)  # seconds
_OPTIONS: tuple[tuple[float, dict[str, str]], ...] = (
    (0.3, {"claimIdle": "30s"}),
    (0.2, {"onCommit": "delete"}),
    (0.5, {"mode": "DEADLETTER", "deadLetterStream": DEAD}),
    (0.3, {"failOnDataLoss": "false"}),
    (0.7, {"maxEntriesPerTrigger": "3"}),
)
_NEVER_WITH_NO_ACK = ("claimIdle", "onCommit")


@dataclass(frozen=True)
class Answer:
    """What a command has said."""

    words: tuple[str, ...]
    code: int
    text: str
    said: Any  # its JSON; None: an error
    was_killed: bool = False


@dataclass(frozen=True)
class Segment:
    """A part of a command's run in which only it has worked."""

    before: State
    after: State
    running: Mapping[str, int]  # queries whose process lives, with its ID

    @property
    def change(self) -> Change:
        """What the command has changed."""
        return change(self.before, self.after)


@dataclass
class Run:
    """A run of a command."""

    answer: Answer
    segments: list[Segment]

    @property
    def was_alone(self) -> bool:
        """Whether nothing else happened meanwhile."""
        return len(self.segments) == 1


Happens = Sequence[tuple[int, Callable[[], None]]]  # (request, what happens before it)


class Work:
    """A run of a command that goes on, alone or beside another one. Between `goes_on` and `pauses` only it works."""

    def __init__(self, life: Life, words: Sequence[str], at: Happens) -> None:
        life.tell(f"$ rstream {' '.join(words)}")
        self.life, self.words, self.process = life, words, life.place.new()
        self.process.interruptions = [(number, partial(self._interrupted, act)) for number, act in at]
        self.segments: list[Segment] = []
        self.result: Any = None

    def goes_on(self, state: State | None = None) -> None:
        """Note the state before its next part."""
        self._before, self._running = state or self.life.state(), self.life.running

    def pauses(self) -> State:
        """Note the state behind that part."""
        after = self.life.state()
        self.segments.append(Segment(self._before, after, self._running))
        return after

    def _interrupted(self, act: Callable[[], None]) -> None:
        self.pauses()
        try:
            act()
        finally:
            self.goes_on()

    def work(self) -> None:
        """Run the command to its end, unless it is killed."""
        try:
            with self.life.place.at_work(self.process):
                words = [*self.words, "--json", "--url", self.life.server.url]
                self.result = CliRunner().invoke(main, words, input=self.life.stdin)
        except Killed:
            self.life.tell("  killed")

    def ended(self) -> Run:
        """Return the run."""
        self.life.place.end(self.process)
        return Run(self.life._answer(self.words, self.result), self.segments)


class Life:
    """tell: receives the story, a line for each event."""

    def __init__(self, server: ProcessServer, seed: int, tell: Callable[[str], None] = lambda _: None) -> None:
        server.core.begin(seed)
        self.server, self.seed, self.tell = server, seed, tell
        self.client = server.client(decode_responses=True)
        self.other = server.another()
        self._other_client = self.other.client(decode_responses=True)
        self.place = Place(server)
        self.chance = random.Random(seed)
        older.version[0] = self.version = self.chance.choice(("8", "8", "7.0"))
        # Nodes of few entries, so that trimming by nodes finds whole ones.
        self.client.config_set("stream-node-max-entries", self.chance.choice((2, 100)))
        self.no_ack = self.chance.choice((0.1, 0.1, 0.1, 0.8))  # the share of queries with noAck
        self.known = dict[tuple[str, Key], Any]()  # each entry that ever was, with its fields
        self.removed = dict[tuple[str, Key], str]()  # by clients: deleted, or trimmed
        self.changes = False  # whether a command makes its change now: what it touches is noted behind it
        self.copies: list[list[str]] = []  # the words of earlier copies
        self.near: tuple[str, str] | None = None  # the group that the command beside this one is about
        self.has_files = seed % 4 == 1  # it also has files of entries, commands that add, and a server that fails over
        self.files = dict[str, dict[Key, Any]]()  # what an export has written
        self.folder = ""  # of these
        self.stdin = ""  # of the next command
        self.streams = ["s", "t"][: self.chance.choice((1, 1, 2))]
        self.faults: list[str] = []
        self.counts: dict[str, int] = {}
        self.touched = set[tuple[str, str]]()  # groups that an operator has changed
        self.thinned = set[str]()  # streams from which a client has removed entries
        self.shared = set[tuple[str, str]]()  # groups from which a client has read
        self._numbers = 0
        self.queries = [self._query(name) for name in ("spark", "late", "third")[: self.chance.choice((1, 2, 2, 3))]]

    def _query(self, name: str) -> Query:
        options: dict[str, str] = {}
        for share, more in _OPTIONS:
            if self.chance.random() < share:
                options |= more
        if self.chance.random() < self.no_ack:
            options = {key: value for key, value in options.items() if key not in _NEVER_WITH_NO_ACK}
            options["noAck"] = "true"
        streams = ",".join(self.streams if self.chance.random() < 0.6 else [self.chance.choice(self.streams)])
        group = f"n{name}" if "noAck" in options else self.chance.choice(("g", "g", "h"))  # it reads alone
        return Query(self.place, name, group, {"streams": streams, **options})

    def fault(self, text: str) -> None:
        """Record what must not be."""
        self.tell(f"!!! {text}")
        self.faults.append(text)

    def count(self, what: str) -> None:
        """Count an event."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def state(self) -> State:
        """Read the server. No time passes."""
        clock = self.server.core.clock
        moment = clock.moment
        found = look(self.client, clock.unix_ms(), self._other_client)
        clock.return_to(moment)
        for name, stream in found.all_streams.items():
            self.known |= {(name, key): fields for key, fields in stream.entries.items()}
        return found

    @property
    def running(self) -> dict[str, int]:
        """The queries whose process lives, with its ID."""
        return {query.name: query.process.pid for query in self.queries if query.process is not None}

    # -- everybody but the commands --------------------------------------------------------------------------------

    def act(self) -> None:
        """Let a client or a query do something."""
        chosen = self.chance.choices(
            (
                *(self.add, self.advance, self.read, self.acknowledge, self.delete, self.trim, self.leave, self.wait),
                *(self.take, self.join),
            ),
            (5, 6, 3, 2, 1, 0.6, 2, 1.5, 1, 0.2),
        )[0]
        chosen()
        if self.has_files and self.version == "7.0" and self.chance.random() < 0.05:
            self.fail_over()

    def fail_over(self) -> None:
        """A replica of Redis 7.0 becomes the master: it does not know how many entries a group has read (R90)."""
        self.tell("the server fails over")
        self.count("failed over")
        for (stream, name), group in [(place, self.state().group(*place)) for place in all_places(self.state())]:
            self.client.xgroup_setid(stream, name, text_of(group.position if group is not None else (0, 0)))
        for query in self.queries:
            for connection in query.process.connections if query.process is not None else ():
                connection.close()

    def add(self) -> None:
        """A producer adds entries; some do not fit the query's columns."""
        stream, count = self.chance.choice(self.streams), self.chance.randint(1, 6)
        self.tell(f"producer: {count} entries to {stream}")
        for _ in range(count):
            self._numbers += 1
            value = str(self._numbers) if self.chance.random() < 0.85 else "x"
            self.client.xadd(stream, {"n": value, "number": str(self._numbers)})

    def advance(self) -> None:
        """A query runs a trigger; it may be killed at a request."""
        here = [query for query in self.queries if self.near is not None and query.group == self.near[1]]
        query = self.chance.choice(here or self.queries)
        dies = [(self.chance.randint(1, 40), self._kill)] if self.chance.random() < 0.2 else []
        result = query.advance(dies)
        self.tell(f"query {query.name} ({query.group}): {result} {query.error if result == 'error' else ''}")
        if result == "error":
            self._judge_error(query)
        if result == "batch" and self.chance.random() < 0.2:  # what it reads is right above the query's commit mark
            self.read((self.chance.choice(query.streams), query.group))

    def _kill(self) -> None:
        raise Killed

    def _judge_error(self, query: Query) -> None:
        places = {(stream, query.group) for stream in query.streams}
        # A query that was killed finds entries of its batch claimed by another one.
        is_disturbed = (
            self.changes
            or bool(places & (self.touched | self.shared) or {*query.streams} & self.thinned)
            or any(
                other is not query
                and other.group == query.group
                and "claimIdle" in other.options
                and {*other.streams} & {*query.streams}
                for other in self.queries
            )
        )
        name = type(query.error).__name__
        self.count(f"query: {name}")
        if name not in ("StreamMissingError",) and not is_disturbed and "not running" not in str(query.error):
            if "LeaseTaken" in name or "Taken" in name or "InUse" in name:
                return
            self.fault(f"false alarm of query {query.name}: {query.error}")

    def read(self, place: tuple[str, str] | None = None) -> None:
        """A client reads by XREADGROUP."""
        place, client = place or self._group(), self.chance.choice(CLIENTS)
        if place is None or place[1].startswith("n") or self.state().group(*place) is None:
            return
        self.tell(f"{client} reads {place}")
        self.shared.add(place)
        self.client.xreadgroup(place[1], client, {place[0]: ">"}, count=self.chance.randint(1, 5))

    def take(self) -> None:
        """A client claims entries that are idle for a second, maybe of a consumer that a command just looks at."""
        place, client = self.near or self._group(), self.chance.choice(CLIENTS)
        group = None if place is None else self.state().group(*place)
        others = {*CLIENTS} - {client}
        theirs = [] if group is None else [key for key, one in group.pending.items() if one.consumer in others]
        if place is not None and theirs and not place[1].startswith("n"):
            self.tell(f"{client} claims in {place}")
            self.client.xclaim(*place, client, 1_000, [*map(text_of, theirs[: self.chance.randint(1, len(theirs))])])

    def join(self, place: tuple[str, str] | None = None) -> None:
        """A client becomes a consumer of a group, and reads nothing."""
        if (place := place or self._group()) is not None:
            self.tell(f"eve joins {place}")
            self.shared.add(place)
            self.client.xgroup_createconsumer(*place, "eve")

    def acknowledge(self) -> None:
        """A client acknowledges some of its entries."""
        place, client = self._group(), self.chance.choice(CLIENTS)
        group = None if place is None else self.state().group(*place)
        mine = [] if group is None else [key for key, one in group.pending.items() if one.consumer == client]
        if place is not None and mine:
            self.tell(f"{client} acknowledges in {place}")
            self.client.xack(*place, *map(text_of, mine[: self.chance.randint(1, len(mine))]))

    def _group(self) -> tuple[str, str] | None:
        """Return a group, seldom a new one."""
        if self.chance.random() < 0.1:
            stream, group = self.chance.choice(self.streams), self.chance.choice(("workers", "g"))
            if self.state().group(stream, group) is None:
                self.client.xgroup_create(stream, group, "0", mkstream=True)
            return stream, group
        places = [*all_places(self.state())]
        return self.chance.choice(places) if places else None

    def delete(self) -> None:
        """A client deletes an entry."""
        stream = self.chance.choice(self.streams)
        ids = [*self.state().streams[stream].entries] if stream in self.state().streams else []
        if ids:
            self.tell(f"XDEL in {stream}")
            self.thinned.add(stream)
            self.removed[stream, chosen := self.chance.choice(ids)] = "deleted"
            self.client.xdel(stream, text_of(chosen))

    def trim(self) -> None:
        """A client trims a stream."""
        stream = self.chance.choice(self.streams)
        self.tell(f"XTRIM {stream}")
        self.thinned.add(stream)
        before = self.state()
        self.client.xtrim(stream, maxlen=self.chance.randint(2, 15), approximate=False)
        for key in change(before, self.state()).removed.get(stream, ()):
            self.removed[stream, key] = "trimmed"

    def leave(self) -> None:
        """A query stops, or is killed."""
        query = self.chance.choice(self.queries)
        if query.runs:
            self.tell(f"query {query.name} ends")
            self.chance.choice((query.stop, query.kill))()

    def wait(self) -> None:
        """Time passes. A query that lives renews its session."""
        seconds = self.chance.choice(PAUSES)
        self.tell(f"{seconds} s pass")
        sessions = [key for key in self.client.keys("rstream:session:*") if self.client.ttl(key) > 0]
        for key in sessions:  # of queries that live: their threads renew them
            self.client.persist(key)
        self.server.core.clock.sleep(seconds)
        for key in sessions:
            self.client.pexpire(key, TTL)

    def rest(self) -> None:
        """All queries stop, and clients are idle for a while: what commands wait for."""
        for query in self.queries:
            query.stop()
        seconds = self.chance.choice(PAUSES[2:])
        self.tell(f"all queries stop, {seconds} s pass")
        self.server.core.clock.sleep(seconds)

    def abandon(self) -> None:
        """Groups of queries with noAck get another consumer, and more entries; then nobody does anything for long."""
        for place in all_places(self.state()):
            if place[1].startswith("n"):
                self.join(place)
        self.add()
        self.rest()

    # -- commands --------------------------------------------------------------------------------------------------

    def run(self, words: Sequence[str], at: Happens = ()) -> Run:
        """Run a command. at: (request, what happens before it)."""
        work = Work(self, words, at)
        work.goes_on()
        work.work()
        work.pauses()
        return work.ended()

    def run_at_once(
        self, commands: Sequence[tuple[Sequence[str], Happens]], beside: Sequence[Callable[[], None]]
    ) -> list[Run]:
        """Run commands, and whatever else works beside them, so that their requests take turns."""
        works = [Work(self, words, at) for words, at in commands]
        actors = [*(Actor(work.work) for work in works), *map(Actor, beside)]
        streams = [_std()] * len(actors)
        own, state = _std(), self.state()
        while left := [index for index, actor in enumerate(actors) if not actor.done]:
            index = self.chance.choice(left)
            work = works[index] if index < len(works) else None
            if work is not None:
                work.goes_on(state)
            sys.stdin, sys.stdout, sys.stderr = streams[index]
            actors[index].resume(self.chance.choice((0, 0, 1, 2, 5)))
            streams[index] = _std()
            sys.stdin, sys.stdout, sys.stderr = own
            state = self.state() if work is None else work.pauses()
            if (error := actors[index].error) is not None:
                raise error
        return [work.ended() for work in works]

    def _answer(self, words: Sequence[str], result: Any) -> Answer:
        if result is None:
            return Answer(tuple(words), -9, "", None, True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            text = "".join(traceback.format_exception(result.exception))
            self.fault(f"traceback of {' '.join(words)}: {text[-1500:]}")
        said = None
        if result.exit_code == 0 or (result.exit_code == 3 and not result.output.startswith("Error")):
            try:
                said = json.loads(result.stdout)
            except ValueError:
                self.fault(f"no JSON from {' '.join(words)}: {result.stdout[-500:]!r}")
        self.tell(f"  {result.exit_code}: {(json.dumps(said) if said is not None else result.output)[:1500]}")
        return Answer(tuple(words), result.exit_code, result.output, said)


def _std() -> tuple[Any, Any, Any]:
    return sys.stdin, sys.stdout, sys.stderr


def text_of(key: Key) -> str:
    """Return an ID as text."""
    return f"{key[0]}-{key[1]}"
