"""The dead letters of a run: each is of one entry, has its bytes, and goes back at most once.

An entry that was sent back is another entry of the model: it must reach the sink or become a dead letter, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from spark_streams.connector.deadletter.envelope import FIELDS, MARK
from spark_streams.connector.deadletter.mover import KEPT_MS
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive
from spark_streams.connector.deadletter.redrive_plan import PARKED, RedriveOptions
from spark_streams.connector.errors import (
    DecodeError,
    RedriveTakenError,
    RStreamError,
    ServerError,
    StreamMissingError,
    StreamStateError,
)
from spark_streams.connector.keys import key_beside, retry_stream, returned_stream
from spark_streams.connector.options.parsers import MOST_DELAYS
from spark_streams.connector.wire.address import Address
from spark_streams.operations.verify.history import Outcome, Place, Row, id_key
from spark_streams.operations.verify.judge import Facts, judge
from tools.simulation.actor import Actor, Killed
from tools.simulation.at_peace import unnoticed
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.model import Entry
from tools.simulation.options import DEAD, long_delays
from tools.simulation.reasons import Reason
from tools.simulation.threads import PATIENCE, TERMS
from tools.simulation.verdict import facts_of, kind_of, row_of
from tools.simulation.world import CONSUMER, GROUP, World, shape

_ENVELOPE = frozenset(name.decode() for name in FIELDS)
_MARK = MARK.decode()
_KEYS_LOST = {"flushed", "server set back"}
_LATE = 1_000  # milliseconds, more than an idle trigger takes


@dataclass
class Letter:
    """A dead letter. entry: what it was; envelope: its fields `dl.*`; made: entries that were ever made of it; copies:
    those that were made before the state of the server; is_gone: it is no longer in its stream; repeat_reasons: why it
    may be sent back once more; again: why its entry may become one once more."""

    id: str
    entry: Entry
    envelope: Mapping[str, str]
    made: list[Entry | str] = field(default_factory=list)
    copies: list[Entry | str] = field(default_factory=list)
    is_gone: bool = False
    repeat_reasons: set[Reason] = field(default_factory=set)
    again: set[Reason] = field(default_factory=set)

    @property
    def place(self) -> Place:
        """Stream and ID."""
        return DEAD, self.id

    @property
    def redrives(self) -> int:
        """How often its entry had been sent back before."""
        return int(self.envelope["dl.redrives"])

    @property
    def mark(self) -> str:
        """The last field of the entry that is made of it."""
        first = self.envelope["dl.previous"].partition(" ")[2] if self.redrives else self.envelope["dl.id"]
        return f"{self.redrives + 1} {self.envelope['dl.first-failed']} {DEAD}/{self.id} {first}"


class Letters:
    """Dead letters that were ever seen, by ID."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: dict[str, Letter] = {}
        self._ever: dict[tuple[str, Place], Letter] = {}  # also those of other states of the server, by ID and entry
        self._sources: dict[int, Letter] = {}  # by the number of the entry that was made of it
        self._due: dict[tuple[str, int, str], int] = {}  # when entries that wait are read again: Unix milliseconds
        self._not_noted = set[Place]()  # entries whose note stays, although they have a dead letter
        self._wait_twice: dict[Place, Reason] = {}
        self._forgotten = set[int]()  # of these, what a server that was set back has not: it may give their IDs again

    def observe(self) -> None:
        """Look at the dead-letter stream. Called before and after anything that moves dead letters."""
        world = self._world
        present = dict(self._entries(DEAD))
        for entry_id, fields in present.items():
            if entry_id not in self.all:
                self._add(entry_id, fields)
        for letter in self.all.values():
            if not letter.is_gone and letter.id not in present:
                letter.is_gone = True
                self._judge_copies(letter)
        if world.setup.has_values:
            self._excuse_those_that_do_not_fit()

    def check_delays(self) -> None:
        """Check, while the query is idle, that entries wait for a retry as long as their delay by the server's clock,
        and no longer: unless the clock was moved, or keys were lost. Documented (dead-letters.md): nor those of a
        stream that its pattern no longer found when it began."""
        world, options = self._world, self._world.query.options
        delays = [1000 * int(delay) for delay in long_delays(options.get("retryDelay", ""))]
        ever = {event for stream in world.model.streams.values() for event in stream.ever}
        if delays == [0] or "noAck" in options or any(one in _KEYS_LOST or "evicted" in one for one in ever):
            self._due = {}
            return
        clock = cast(ProcessServer, world.server).core.clock
        now, reads = clock.unix_ms(), {*world.query.reads()}
        if "streamsPattern" in options:
            with unnoticed(world):
                reads &= {*world.query.began_with, *(name for name in reads if world.see(name).exists)}
        waits = {
            (name, attempts, entry_id): id_key(entry_id)[0] + delays[min(attempts, len(delays)) - 1]
            for name in world.names()
            for attempts in range(1, len(delays) + 1)
            for entry_id, _ in self._entries(retry_stream(name, GROUP, attempts))
        }
        early = {one: due for one, due in self._due.items() if one not in waits and due > now}
        late = {one: due for one, due in waits.items() if due + _LATE < now and one[0] in reads}
        if (early or late) and not (clock.server_ahead or clock.set_back):
            world.fail(f"read again {'early' if early else 'late'} | {world.query.mode}", f"{early or late} at {now}")
        self._due = waits

    def copied(self, is_changed: bool) -> int:
        """Register entries that were made of dead letters since the last time. is_changed: with another value. Return
        their number."""
        world, found = self._world, 0
        for name in world.names():
            for entry_id, fields in self._entries(name):
                known = world.model.entry_at(name, entry_id)
                if _MARK in fields and (known is None or known.n not in self._sources or known.n in self._forgotten):
                    self._sent_back(name, entry_id, fields, is_changed)
                    found += 1
        for entry_id, fields in self._entries(DEAD + PARKED):
            found += self._parked(entry_id, fields)
        return found

    def settle_those_of_earlier_batches(self) -> None:
        """A server that returns to an older state may lose dead letters, and only those of the last batch are written
        again (documented)."""
        query = self._world.query
        begin = query.begin_of(len(query.offsets) - (not query.takes_a_batch))
        for _, fields in self._entries(DEAD):
            entry = self._world.model.entry_at(fields["dl.stream"], fields["dl.id"])
            if entry is not None and entry.key <= id_key(begin.get(entry.stream, "0-0")):
                entry.excuses.add(Reason.A_LETTER)

    def come_again(self, entries: Collection[Entry], why: Reason) -> None:
        """Record that these entries may become dead letters once more, also those that wait for a retry."""
        with unnoticed(self._world):
            self.observe()  # one may have been written since
            waiting = self._waiting() if self._world.query.had_retries else set()
        self._wait_twice |= {entry.place: why for entry in entries if entry.place in waiting}
        for letter in self.all.values():
            if letter.entry in entries:
                letter.again.add(why)

    def copies(self) -> dict[tuple[str, Place], list[Entry | str]]:
        """Return what was made of each dead letter, by its ID and its entry."""
        return {(letter.id, letter.entry.place): [*letter.copies] for letter in self.all.values()}

    def set_back(self, copies: Mapping[tuple[str, Place], list[Entry | str]] = {}) -> None:
        """The server has another state now: what it holds is what counts. Redrives that run lose their connections.
        copies: what had been made of its dead letters when it was in that state, also if it has left its stream since.
        """
        self._world.redrives.cut()
        self._forgotten = {n for n in self._sources if not self._exists(self._world.model.entries[n])}
        self.all = {}
        for entry_id, fields in self._entries(DEAD):
            known = entry_id, (fields["dl.stream"], fields["dl.id"])
            letter = self._ever.get(known)
            if letter is not None:
                letter.is_gone, then = False, copies.get(known, ())
                letter.copies = [copy for copy in letter.made if copy in then or self._exists(copy)]
                if any(copy not in then for copy in letter.copies):
                    letter.repeat_reasons.add(Reason.SENT_BACK_BEFORE)
                self.all[entry_id] = letter
            else:
                self._add(entry_id, fields)

    def redrive_is_forgotten(self) -> None:
        """Nobody knows any more which dead letters of the page under way were sent back (documented)."""
        for letter in self.all.values():
            if letter.copies and not letter.is_gone:
                letter.repeat_reasons.add(Reason.SENT_BACK_BEFORE)

    def note_is_refused(self, command: str, key: str, *words: str) -> None:
        """A right is missing within a transaction whose other commands are done. Documented: it is repeated."""
        if command == "HSET" and key.startswith("rstream:redriven:"):
            for letter in (self.all[one] for one in words[::2] if one in self.all):
                letter.repeat_reasons.add(Reason.NOTE_REFUSED)
        if command == "HSET" and (of := _noted_stream(key)):
            with unnoticed(self._world):
                self._not_noted |= {self._origin(of, field.rpartition(" ")[2]) for field in words[::2]}

    def noted(self) -> set[tuple[str, Place]]:
        """Return the entries for which there are notes of the opened batches, each with the name of its batch."""
        found, client = set[tuple[str, Place]](), self._world.client
        with unnoticed(self._world):
            for key in client.scan_iter("rstream:notes:*", count=1000):
                fields, of = client.hgetall(key), _noted_stream(key)
                batch = fields.pop("batch", "").partition(".")[2]
                noted = [name.split(" ") for name, value in fields.items() if value]
                letters = [name[2] for name in noted if name[:2] == [batch, "letter"]]
                found |= {(batch, ("", "")), *((batch, self._origin(of, entry_id)) for entry_id in letters)}
        return found

    def lost_notes(self, before: set[tuple[str, Place]]) -> None:
        """Documented: if a server has returned to amid a batch, nobody knows what tasks have noted of it since."""
        now = self.noted()
        opened = {batch for batch, _ in now}
        for batch, place in before - now:
            entry = self._world.model.entry_at(*place)
            if batch in opened and entry is not None and not entry.fits:
                entry.excuses.add(Reason.NOTED_SINCE)

    def _origin(self, of: str, entry_id: str) -> Place:
        """Return the place of an entry of which this one may be a retry."""
        of_retry = dict(self._world.client.xrange(of, entry_id, entry_id)).get(entry_id, {})
        return of_retry.get("dl.stream", of), of_retry.get("dl.id", entry_id)

    def explains(self, error: DecodeError) -> bool:
        """Whether mode FAILFAST must raise this."""
        entries = self._world.model.entries.values()
        return "FAILFAST" in self._world.query.modes and any(
            not entry.fits and f"entry {entry.id} of stream '{entry.stream}'" in error.message for entry in entries
        )

    def _add(self, entry_id: str, fields: Mapping[str, str]) -> None:
        world = self._world
        entry = world.model.entry_at(fields["dl.stream"], fields["dl.id"])
        if entry is None:
            return
        envelope = {name: value for name, value in fields.items() if name in _ENVELOPE}
        letter = self.all[entry_id] = self._ever[entry_id, entry.place] = Letter(entry_id, entry, envelope)
        own = {name: value for name, value in fields.items() if name not in _ENVELOPE}
        source = self._sources.get(entry.n)
        redrives, previous = (0, "") if source is None else (source.redrives + 1, source.mark.split(" ", 2)[2])
        if own != entry.fields:
            world.fail(f"a dead letter with other bytes | {world.query.mode}", f"{own} of entry {entry}")
        if (letter.redrives, envelope["dl.previous"]) != (redrives, previous):
            world.fail(f"a dead letter without its past | {world.query.mode}", f"{envelope}, not {redrives} {previous}")
        self._judge_entry(entry)
        entry.excuses.add(Reason.A_LETTER)

    def _judge_entry(self, entry: Entry) -> None:
        """Ask the judge about an entry that has become a dead letter."""
        world, facts = self._world, facts_of(entry)
        if entry.n in world.model.sunk and world.setup.sink == "recorder":
            facts.rows = [row_of(entry)]
        letters = [one for one in self.all.values() if one.entry is entry]
        facts.letters, facts.is_bad = len(letters), True
        facts.may_repeat |= {why for one in letters for why in one.again}
        if entry.place in self._wait_twice:
            facts.may_repeat |= {self._wait_twice[entry.place]}
        if entry.place in self._not_noted:
            facts.may_repeat |= {Reason.NOTE_REFUSED}
        self.judge(
            facts,
            [entry],
            f"entry {entry.n} is dead letter {' and '.join(one.id for one in letters)}, {len(facts.rows)} rows",
        )

    def _judge_copies(self, letter: Letter) -> None:
        """Ask the judge about a dead letter: it is still there, or was sent back."""
        value = ("dead letter", letter.entry.n)
        copies = [
            Row(copy.place if isinstance(copy, Entry) else (PARKED, copy), value, 0, 0, 0, 0) for copy in letter.copies
        ]
        facts = Facts(letter.place, value, Outcome.OK, copies, may_repeat=frozenset(letter.repeat_reasons))
        facts.is_reported = not letter.is_gone
        self.judge(facts, [], f"{letter.id} of entry {letter.entry.n}: {copies}")

    def judge(self, facts: Facts, entries: list[Entry], details: str) -> None:
        """Ask the judge. entries: that it concerns."""
        judgement = judge([facts])
        self._world.used.update(judgement.used)
        for fault in judgement.found:
            self._world.fail(kind_of(self._world, f"{fault}, a dead letter", entries), details)

    def _sent_back(self, name: str, entry_id: str, fields: Mapping[str, str], is_changed: bool) -> None:
        world = self._world
        own = {field_name: value for field_name, value in fields.items() if field_name != _MARK}
        copy = world.model.add(name, entry_id, own)
        world.is_added(copy)
        letter = next((one for one in self.all.values() if f" {DEAD}/{one.id} " in fields[_MARK]), None)
        if letter is None:
            self.judge(Facts(copy.place, rows=[row_of(copy)]), [copy], f"sent back: {entry_id} of {name}: {fields}")
            return
        self._sources[copy.n] = letter
        allowed = [letter.entry.fields, {**letter.entry.fields, **CHANGED}] if is_changed else [letter.entry.fields]
        if own not in allowed or fields[_MARK] != letter.mark or name != letter.entry.stream:
            world.fail(f"sent back with other bytes | {world.query.mode}", f"{name} {fields}, not {letter}")
        self._copy(letter, copy)

    def _parked(self, entry_id: str, fields: Mapping[str, str]) -> int:
        for letter in self.all.values():
            if letter.envelope.items() <= fields.items() and entry_id not in letter.copies:
                self._copy(letter, entry_id)
                return 1
        return 0

    def _copy(self, letter: Letter, copy: Entry | str) -> None:
        letter.made.append(copy)
        letter.copies.append(copy)
        self._judge_copies(letter)

    def _entries(self, stream: str) -> list[tuple[str, dict[str, str]]]:
        found: Any = self._world.client.xrange(stream)
        return list(found)

    def _exists(self, copy: Entry | str) -> bool:
        stream, entry_id = (DEAD + PARKED, copy) if isinstance(copy, str) else copy.place
        return bool(self._world.client.xrange(stream, entry_id, entry_id))

    def _excuse_those_that_do_not_fit(self) -> None:
        """Entries that wait for a retry are no loss meanwhile. Mode DROPMALFORMED drops what does not fit."""
        model, query = self._world.model, self._world.query
        waiting = self._waiting() if query.had_retries else set()
        for entry in model.entries.values():
            entry.excuses.discard(Reason.WAITS)
            if entry.place in waiting:
                entry.excuses.add(Reason.WAITS)
            if not entry.fits and "DROPMALFORMED" in query.modes:
                entry.excuses.add(Reason.DROPPED)

    def _waiting(self) -> set[tuple[str, str]]:
        """Return stream and ID of entries that wait, or were returned and not read yet."""
        found = set[tuple[str, str]]()
        for name in self._world.names():
            entries: list[tuple[str, dict[str, str]]] = []
            for attempts in range(1, MOST_DELAYS + 1):
                entries += self._entries(retry_stream(name, GROUP, attempts))
            returned = returned_stream(name, GROUP)
            seen = self._world.see(returned)
            position = id_key(seen.position or "0-0")
            entries += [
                (entry_id, fields)
                for entry_id, fields in self._entries(returned)
                if entry_id in seen.pending or id_key(entry_id) > position
            ]
            found |= {(fields["dl.stream"], fields["dl.id"]) for _, fields in entries}
        return found


CHANGED = {"v": "7"}  # what an operator sets before an entry is sent back


# -- processes that send dead letters back (`rstream dead redrive`) ----------------------------------------------------


_FIRST = 2_000_000  # number of the first process; those of drivers are lower
_FEW = replace(DEAD_LETTER_LIMITS, first_page=2, largest_page=3)  # so that a few dead letters are several pages
_LEASE = key_beside(DEAD, "lease", "redrive")
_REFUSAL_ALLOWED = ("evicted redrive", "evicted redriven", "evicted lease", "evicted session")


@dataclass
class Process:
    """One process. before: dead letters that existed when it began; may_fail: the server was away meanwhile; since:
    when it began to stand still (milliseconds of the server's clock); is_over: its state has expired since."""

    number: int
    options: RedriveOptions
    actor: Actor
    before: list[Letter]
    may_fail: bool = False
    has_worked: bool = False
    since: int = 0
    is_over: bool = False


class Redrives:
    """All of them. standing: those that stand still; may_meet: a lease may be missing, so two may work at a time, and
    one of them may find the other one's state."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun = 0
        self.standing: list[Process] = []
        self._working: Process | None = None
        self.may_meet = False

    def lives(self, number: int) -> bool:
        """Whether the process with this number lives."""
        return any(process.number == number for process in self._alive())

    def start(self, options: RedriveOptions) -> Process:
        """Begin a process. It has not worked yet."""
        number = _FIRST + self._begun
        self._begun += 1
        address = replace(Address.parse(self._world.server.url), patience=PATIENCE)

        def work() -> Any:
            return DeadLetterRedrive(address, options, sleep=PATIENCE.sleep, limits=_FEW, terms=TERMS).run()

        self._world.letters.observe()
        before = [letter for letter in self._world.letters.all.values() if not letter.is_gone]
        process = Process(number, options, Actor(work, process=number), before)
        self.may_meet |= bool(self.standing)
        return process

    def work(self, process: Process, ticks: int | None) -> None:
        """Let a process work for so many ticks, or to its end."""
        world = self._world
        self.standing = [other for other in self.standing if other is not process]
        # One that stood still may go on until its successor has written its own state.
        is_refused = not process.has_worked and any(self._holds_lease(other) for other in self.standing)
        process.has_worked = True
        process.is_over |= process.since > 0 and self._now() - process.since >= KEPT_MS
        self._working, world.pauses = process, 0
        process.may_fail |= world.away
        world.letters.observe()
        process.actor.resume(ticks)
        copied = world.letters.copied(bool(process.options.changes))
        world.letters.observe()
        process.may_fail |= world.away
        self._working = None
        if copied and is_refused:
            world.fail("two redrives at once", f"{process.number} has moved {copied} beside another one")
        if process.actor.done:
            self._judge(process)
            return
        process.since = self._now()
        self.standing.append(process)
        has_begun = world.client.exists(key_beside(DEAD, "redrive"))
        if has_begun and not world.client.exists(_LEASE) and not self._has_lost_keys():
            world.fail("two redrives at once", f"{process.number} works without a lease")

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        self.standing = [other for other in self.standing if other is not process]
        self._cut(process)
        process.actor.end()

    def cut(self) -> None:
        """Break the connections of all processes."""
        for process in self._alive():
            process.may_fail = True
            self._cut(process)

    def finish(self) -> None:
        """Let all processes end, and another one move the rest."""
        if self._begun:
            for process in [*self.standing]:
                self.work(process, None)
            if self._world.client.exists(DEAD):
                self.work(self.start(RedriveOptions(DEAD)), None)

    def end(self) -> None:
        """Kill all processes."""
        for process in [*self.standing]:
            self.kill(process)

    def _alive(self) -> Iterator[Process]:
        yield from self.standing
        if self._working is not None:
            yield self._working

    def _cut(self, process: Process) -> None:
        self._world.cut(connection for connection, owner in self._world.connections if owner is process.actor)

    def _holds_lease(self, process: Process) -> bool:
        held = json.loads(self._world.client.get(_LEASE) or "{}")
        return held.get("pid") == process.number and bool(self._world.client.exists(held["session"]))

    def _judge(self, process: Process) -> None:
        """Check how a process has ended."""
        world, error = self._world, process.actor.error
        world.tell(f"   redrive {process.number}: {error or process.actor.result}")
        if error is None:
            self._check_nothing_left(process)
        elif isinstance(error, RedriveTakenError):
            if not (self.may_meet or process.is_over or self._has_lost_keys()):
                world.fail(f"a redrive is refused | {shape(error)}", error.message)
        elif isinstance(error, StreamMissingError):
            if process.before and world.client.exists(DEAD):  # else the stream may have come after it had looked
                world.fail(f"a redrive fails | {shape(error)}", error.message)
        elif isinstance(error, StreamStateError):
            self._remedy(error)
        elif isinstance(error, ServerError):
            if not process.may_fail:
                world.fail(f"a redrive fails | {shape(error)}", error.message)
        elif isinstance(error, RStreamError):
            world.fail(f"a redrive fails | {shape(error)}", error.message)
        elif not isinstance(error, Killed):
            world.fail(f"crash | a redrive: {type(error).__name__}", repr(error))

    def _check_nothing_left(self, process: Process) -> None:
        """Check that the dead letters which existed before have left, if nothing limited it. A run that goes on with
        that of a killed process moves what existed then."""
        ever = {event for stream in self._world.model.streams.values() for event in stream.ever}
        if process.options.limit is not None or {"evicted origins", "flushed", "server set back"} & ever:
            return
        bound = id_key(process.actor.result.bound)
        for letter in process.before:
            is_left = not letter.is_gone and id_key(letter.id) <= bound
            self._world.letters.judge(Facts(letter.place, is_pending=is_left), [], f"{letter}; {process.actor.result}")

    def _now(self) -> int:
        server = self._world.server
        return server.core.clock.unix_ms() if isinstance(server, ProcessServer) else 0

    def _has_lost_keys(self) -> bool:
        ever = {event for stream in self._world.model.streams.values() for event in stream.ever}
        return bool(ever & {*_REFUSAL_ALLOWED, "flushed", "server set back"})

    def _remedy(self, error: StreamStateError) -> None:
        """Do what the error says about entries that left their stream before their dead letters were deleted."""
        world = self._world
        command = re.search(r"redis-cli DEL (\S+)$", error.message)
        removed = any(entry.removed_by for entry in world.model.entries.values())
        if command is None or not removed:
            world.fail(f"a redrive fails | {shape(error)}", error.message)
            return
        world.tell(f"   operator: deletes {command[1]}")
        world.client.delete(command[1].strip("'"))
        for letter in world.letters.all.values():
            letter.repeat_reasons.add(Reason.SENT_BACK_AGAIN)


def _noted_stream(key: str) -> str:
    """Return the stream that has this key for its notes; "": none."""
    notes = re.fullmatch(rf"rstream:notes:\{{(.+?)\}}:(?:(.+):)?{GROUP}:{CONSUMER}", key)
    return "" if notes is None else notes[2] or notes[1]
