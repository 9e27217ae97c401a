"""The dead letters of a run: each is of one entry, has its bytes, and goes back at most once.

An entry that was sent back is another entry of the model: it must reach the sink or become a dead letter, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_streams.connector.deadletter.envelope import FIELDS, MARK
from spark_streams.connector.deadletter.redrive_options import PARKED
from spark_streams.connector.errors import DecodeError
from spark_streams.connector.keys import retry_stream, returned_stream
from spark_streams.connector.options.parsers import MOST_DELAYS
from spark_streams.operations.verify.history import id_key
from tools.simulation.model import DROPPED, Entry
from tools.simulation.options import DEAD
from tools.simulation.verdict import kind_of
from tools.simulation.world import GROUP, World

_ENVELOPE = frozenset(name.decode() for name in FIELDS)
_MARK = MARK.decode()
_A_LETTER, _WAITS = "a dead letter", "waits for a retry"
# Events after which an entry may be read again, and fail again.
_READ_AGAIN = {
    "flushed",
    "server set back",
    "checkpoint set back",
    "checkpoint put back",
    "commits lost",
    "group created again",
    "group destroyed",
    "group set back",
    "evicted committed",
    "evicted attempts",
}


@dataclass
class Letter:
    """A dead letter. entry: what it was; envelope: its fields `dl.*`; copies: entries that were made of it; is_gone:
    it is no longer in its stream; may_repeat: an operator, or a lost note, allows another copy."""

    id: str
    entry: Entry
    envelope: Mapping[str, str]
    copies: list[Entry | str] = field(default_factory=list)
    is_gone: bool = False
    may_repeat: bool = False

    @property
    def redrives(self) -> int:
        """How often its entry had been sent back before."""
        return int(self.envelope["dl.redrives"])

    @property
    def mark(self) -> str:
        """The last field of the entry that is made of it."""
        return f"{self.redrives + 1} {self.envelope['dl.first-failed']} {DEAD}/{self.id}"


class Letters:
    """Dead letters that were ever seen, by ID."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: dict[str, Letter] = {}
        self._sources: dict[int, Letter] = {}  # by the number of the entry that was made of it
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
                if not letter.copies:
                    world.fail(f"a lost dead letter | {world.query.mode}", f"{letter.id} of entry {letter.entry.n}")
        if world.setup.has_values:
            self._excuse_those_that_do_not_fit()

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
                entry.excuses.add(_A_LETTER)

    def set_back(self) -> None:
        """The server has another state now: what it holds is what counts. Redrives that run lose their connections."""
        self._world.redrives.cut()
        self._forgotten = {n for n in self._sources if not self._exists(self._world.model.entries[n])}
        before, self.all = self.all, {}
        for entry_id, fields in self._entries(DEAD):
            letter = before.get(entry_id)
            if letter is not None:
                letter.is_gone = False
                letter.copies = [copy for copy in letter.copies if self._exists(copy)]
                self.all[entry_id] = letter
            else:
                self._add(entry_id, fields)

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
        letter = self.all[entry_id] = Letter(entry_id, entry, envelope)
        own = {name: value for name, value in fields.items() if name not in _ENVELOPE}
        source = self._sources.get(entry.n)
        redrives, previous = (0, "") if source is None else (source.redrives + 1, f"{DEAD}/{source.id}")
        if own != entry.fields:
            world.fail(f"a dead letter with other bytes | {world.query.mode}", f"{own} of entry {entry}")
        if (letter.redrives, envelope["dl.previous"]) != (redrives, previous):
            world.fail(f"a dead letter without its past | {world.query.mode}", f"{envelope}, not {redrives} {previous}")
        if entry.n in world.model.sunk and not entry.repeat_reasons and world.setup.sink == "recorder":
            world.fail(kind_of(world, "a dead letter and a row", [entry]), f"entry {entry.n} is in both")
        others = [one for one in self.all.values() if one.entry is entry and one is not letter]
        ever = world.model.stream(entry.stream).ever
        if others and not entry.fits and not entry.repeat_reasons and not (_READ_AGAIN & ever):
            world.fail(kind_of(world, "two dead letters", [entry]), f"entry {entry.n}: {others[0].id} and {entry_id}")
        entry.excuses.add(_A_LETTER)

    def _sent_back(self, name: str, entry_id: str, fields: Mapping[str, str], is_changed: bool) -> None:
        world = self._world
        own = {field_name: value for field_name, value in fields.items() if field_name != _MARK}
        copy = world.model.add(name, entry_id, own)
        letter = next((one for one in self.all.values() if fields[_MARK].endswith(f" {DEAD}/{one.id}")), None)
        if letter is None:
            world.fail(f"sent back without a dead letter | {world.query.mode}", f"{entry_id} of {name}: {fields}")
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
        if letter.copies and not letter.may_repeat:
            self._world.fail(f"sent back twice | {self._world.query.mode}", f"dead letter {letter}: {copy}")
        letter.copies.append(copy)

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
            entry.excuses.discard(_WAITS)
            if entry.place in waiting:
                entry.excuses.add(_WAITS)
            if not entry.fits and "DROPMALFORMED" in query.modes:
                entry.excuses.add(DROPPED)

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
