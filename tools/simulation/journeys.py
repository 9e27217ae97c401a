"""What `rstream where` says of entries and dead letters of a run, compared with the model and with the server.

A line that is exact must be true. A line that is not known must not leave out what has happened. The model cannot tell
which of two streams of one name an entry was in after the server was set back: such lines are not judged.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin.checkpoint import Batch, Checkpoint
from spark_streams.connector.deadletter import redrive_plan
from spark_streams.connector.errors import OffsetError
from spark_streams.connector.keys import retry_stream, returned_stream
from spark_streams.connector.options.parsers import MOST_DELAYS
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.session import Session
from spark_streams.operations.journey.entry_lines import JourneyLine
from spark_streams.operations.journey.journey import Beside, Journey, journeys
from spark_streams.operations.verify.history import id_key
from tools.simulation.letters import Letter
from tools.simulation.model import Entry
from tools.simulation.options import DEAD
from tools.simulation.sinks import OUT, Once
from tools.simulation.threads import PATIENCE
from tools.simulation.world import CONSUMER, GROUP, World

_LIMIT = 100_000
PARKED = f"{DEAD}{redrive_plan.PARKED}"
_WITH_ITS_STREAM = {"vanished", "flushed"}
_SET_BACK = {"server set back", "checkpoint set back", "checkpoint put back", "commits lost"}
# Events after which the rows of a batch do not say what was in it.
_UNCLEAR = {
    *_WITH_ITS_STREAM,
    *_SET_BACK,
    "entries taken from us",
    "entries given to us",
    "group set forward",
    "group set back",
    "group created again",
    "group destroyed",
    "group sought",
    "our consumer deleted",
}


class Asker:
    """Asks about entries at one moment, in which nothing else happens."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world, self._chance = world, chance
        self.asked = 0

    def ask(self, most: int) -> None:
        """Ask about some entries, and about some dead letters. most: of each."""
        world = self._world
        if world.network.is_disturbed:
            return
        world.letters.observe()
        entries, letters = [*world.model.entries.values()], [*world.letters.all.values()]
        world.looks_on, before = True, [*world.connections]
        try:
            with Session(replace(Address.parse(world.server.url), patience=PATIENCE)) as session:
                for entry in self._some([one for one in entries if world.model.entry_at(*one.place) is one], most):
                    told = self._told(session, entry.stream, entry.id)
                    world.tell(f"      where {entry.stream} {entry.id}: {[line.event for line in told[0].lines]}")
                    _Judge(world, entry, told[0].lines).judge()
                for letter in self._some(letters, most):
                    _judge_letter(world, letter, self._told(session, DEAD, letter.id))
        finally:
            world.looks_on = False
            world.connections[:] = before

    def _some(self, values: Sequence[Any], most: int) -> Sequence[Any]:
        return self._chance.sample(values, min(most, len(values)))

    def _told(self, session: Session, stream: str, entry: str) -> list[Journey]:
        self.asked += 1
        beside = Beside([_checkpoint(self._world)], (), [self._world.archive])
        return journeys(session, stream, StreamId.parse(entry), _LIMIT, beside)


def _checkpoint(world: World) -> Checkpoint:
    """Return both logs of the query as the command reads them."""
    query = world.query
    batches = [
        Batch(number, None, _offsets(offset), number <= query.committed) for number, offset in enumerate(query.offsets)
    ]
    return Checkpoint(query.id, batches)


def _offsets(offset: Mapping[str, Any]) -> Sequence[Offset] | None:
    try:
        return [Offset.from_json(offset)]
    except OffsetError:  # while the archive is read
        return None


class _Judge:
    """Judges the lines about one entry."""

    def __init__(self, world: World, entry: Entry, lines: Sequence[JourneyLine]) -> None:
        self._world, self._entry, self._lines = world, entry, lines
        self._ever = world.model.stream(entry.stream).ever
        found: Any = world.client.xrange(entry.stream, entry.id, entry.id)
        self._is_there = bool(found)
        self._letters = [letter for letter in world.letters.all.values() if letter.entry is entry]
        self._here = {(DEAD, letter.id) for letter in self._letters if not letter.is_gone}
        parked = {copy for letter in self._letters for copy in letter.copies if isinstance(copy, str)}
        self._here |= {(PARKED, copy) for copy in parked if world.client.xrange(PARKED, copy, copy)}

    def judge(self) -> None:
        """Compare each line that the model can decide."""
        self._judge_presence()
        self._judge_group()
        self._judge_copies()
        self._judge_batches()
        self._judge_archive()

    def _of(self, *events: str) -> list[JourneyLine]:
        return [line for line in self._lines if line.event in events]

    def _require(self, is_true: bool, what: str) -> None:
        if not is_true:
            events = "+".join(sorted(self._ever)) or "nothing"
            shown = "\n    ".join(f"{line.event} {line.group} | {line.text} | {line.known}" for line in self._lines)
            self._world.fail(f"where: {what} | after {events}", f"{self._entry}\n    {shown}")

    def _judge_presence(self) -> None:
        added, entry = self._of("added"), self._entry
        left = self._of("never added", "trimmed", "deleted", "removed", "absent")
        self._require(bool(added) or not self._is_there, "an entry that is there is not said to be added")
        self._require(not added or added[0].at in (None, entry.key[0]), "another time")
        self._require(self._is_there == (not left), "there, or not")
        if not left or self._is_there or entry.archived or {"server set back"} & self._ever:
            return
        [line] = left
        is_of_old_stream = bool(_WITH_ITS_STREAM & self._ever)
        if line.event == "never added" and not is_of_old_stream:
            self._require(False, "never added, although it was")
        if line.event in ("trimmed", "deleted") and entry.removed_by in ("trimmed", "deleted"):
            self._require(line.event == entry.removed_by, f"{line.event}, and it was {entry.removed_by}")
        possible: Any = line.facts.get("possible")
        if possible and entry.removed_by in ("trimmed", "deleted") and not is_of_old_stream:
            self._require(entry.removed_by in possible, f"{entry.removed_by} is left out")

    def _judge_group(self) -> None:
        world, entry = self._world, self._entry
        seen = world.see(entry.stream)
        lines = [line for line in self._lines if line.group == GROUP and line.event != "batch"]
        lines = [line for line in lines if line.event not in ("dead", "waiting", "returned")]
        if seen.position is None:
            return
        names = {line.event for line in lines}
        is_pending, is_above = entry.id in seen.pending, entry.key > id_key(seen.position)
        own = [line for line in lines if line.source != "returned"]
        pending = [line for line in own if line.event == "pending"]
        if is_pending:
            self._require(
                any(line.facts["consumer"] in (seen.pending[entry.id], None) for line in pending), "another consumer"
            )
        elif is_above and self._is_there:
            before = sum(id_key(seen.position) < id_key(one) < entry.key for one in seen.ids)
            told = [line for line in own if line.event == "not delivered" and line.facts.get("before") == before]
            self._require(bool(told), "not delivered")
        for line in own:
            if line.event == "never" and line.source == "XINFO GROUPS":
                self._require(is_above and not self._is_there, "never delivered")
            if line.event == "never" and line.source == "commit mark":
                # An archive has given it to the query, and not the group.
                has_row = entry.n in self._rows_of_checkpoint() and not entry.archived
                self._require(not has_row, "never read by the checkpoint, and it has a row")
                mark = Mark.parse(world.raw.get(committed_key(entry.stream, GROUP, CONSUMER)))
                self._require(mark is None or entry.key <= id_key(str(mark.id)), "begins above it")
        if "delivered" in names:
            self._require(bool(self._here or self._copies()) and not is_pending, "delivered without a copy")

    def _judge_copies(self) -> None:
        dead = [line for line in self._of("dead") if "id" in line.facts]
        self._require({(line.facts["stream"], line.facts["id"]) for line in dead} == self._here, "other dead letters")
        for line in dead:
            self._require(line.facts["same_fields"] is (True if self._is_there else None), "other bytes")
        if self._of("no dead letter"):
            self._require(not self._here, "no dead letter, and there is one")
        copies = self._copies()
        told = {(str(line.facts["stream"]), str(line.facts["id"])) for line in self._of("waiting", "returned")}
        self._require(told == copies, "other retries")

    def _copies(self) -> set[tuple[str, str]]:
        """Return the entries that wait for a retry, or were returned."""
        world, name = self._world, self._entry.stream
        streams = [retry_stream(name, GROUP, attempts) for attempts in range(1, MOST_DELAYS + 1)]
        streams.append(returned_stream(name, GROUP))
        found: set[tuple[str, str]] = set()
        for stream in streams:
            entries: Any = world.client.xrange(stream)
            found |= {(stream, one) for one, fields in entries if fields.get("dl.id") == self._entry.id}
        return found

    def _rows_of_checkpoint(self) -> set[int]:
        """Return the entries that have a row under the present checkpoint, as far as the sink knows that."""
        world = self._world
        if isinstance(world.sink, Once):
            return world.model.sunk if not world.query.epoch else set()
        kept = world.sink.kept.items()
        return {row.value[1] for (epoch, _), rows in kept if epoch == world.query.epoch for row in rows}

    def _judge_batches(self) -> None:
        world, entry = self._world, self._entry
        if _UNCLEAR & self._ever or world.query.was_limited or not entry.fits or self._letters:
            return
        for line in self._of("batch"):
            number: Any = line.facts["batch"]
            if not line.why_unknown and line.facts["committed"] and not isinstance(world.sink, Once):
                rows = world.sink.kept.get((world.query.epoch, number), ())
                self._require(any(row.value[1] == entry.n for row in rows), "in a batch, and not among its rows")
        for line in self._of("no batch"):
            if not line.why_unknown:
                self._require(entry.n not in self._rows_of_checkpoint(), "in no batch, and it has a row")
        self._judge_ledger()

    def _judge_ledger(self) -> None:
        world, entry = self._world, self._entry
        if {*world.model.stream(OUT).ever} or not isinstance(world.sink, Once):
            return
        exact = [line for line in self._of("batch") if not line.why_unknown and line.facts["committed"]]
        written = [line.facts["batch"] for line in self._of("rows") if line.facts["closed"] and not line.why_unknown]
        for line in exact:
            if line.facts["batch"] in written:
                self._require(entry.n in {row.value[1] for row in world.sink.rows()}, "written, and not in the stream")

    def _judge_archive(self) -> None:
        [line] = self._of("archived", "not archived")
        if not line.why_unknown:
            self._require((line.event == "archived") == self._entry.archived, "archived, or not")


def _judge_letter(world: World, letter: Letter, told: Sequence[Journey]) -> None:
    """Judge what was said of a dead letter."""
    judge = _Judge(world, letter.entry, told[0].lines)
    copies = {copy.place for copy in letter.copies if isinstance(copy, Entry)}
    alive = {place for place in copies if world.client.xrange(*place, place[1])}
    sent = {
        (str(line.facts["stream"]), str(line.facts["id"])) for line in told[0].lines if line.event == "sent back"
        if "id" in line.facts
    }  # fmt: skip
    judge._require(alive <= sent <= copies, "sent back as other entries")
    still = [line for line in told[0].lines if line.event == "not sent back"]
    judge._require(not still or not letter.is_gone, "still a dead letter, and it is gone")
    judge._require({(one.stream.decode(), str(one.id)) for one in told[1:]} >= alive, "a journey is missing")
