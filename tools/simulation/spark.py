"""One streaming query as Spark 4.3 runs it: an offset log, a commit log, and the order of calls.

Measured in docs/internals/facts.md, S1–S8.

    start     the unfinished batch, if the offset log is ahead of the commit log: partitions(start, end) at once (S5)
    trigger   latestOffset(start) → offsets/N → commit(end of N-1) → partitions, tasks, sink → commits/N (S3, S4)

The process may be killed between any two of these, and between any two sends of the library.
"""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_streams.base.given_text import duration
from spark_streams.base.ids import MIN_ID
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.history_reader import HistoryReader
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.offset import Range, StreamOffset, position_in
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.source.settled import Standing
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadAllAvailable, ReadLimit
from spark_streams.operations.verify.history import id_key
from tools.patience import with_patience
from tools.simulation.actor import Killed
from tools.simulation.at_peace import unnoticed
from tools.simulation.mixes import with_limits
from tools.simulation.model import OTHERS, Entry
from tools.simulation.reasons import Reason
from tools.simulation.tasks import SCHEMA, WITH_VALUES, Tasks
from tools.simulation.threads import PATIENCE, TERMS
from tools.simulation.world import CONSUMER, GROUP, Seen, World

Json = dict[str, Any]
# A few entries cross every boundary, and each trigger searches for new streams.
SMALL = replace(
    LIMITS, first_page=2, pending_page=7, reserve_step=3, reserve_round=6, pattern_interval=0.0, idle_check=0.0
)
_HANDED = {"entries given to us", "entries taken from us"}


class Query:
    """A streaming query.

    offsets: the offset log; committed: the last batch of the commit log; epoch: number of earlier checkpoints; options:
    of the next start; lenient: after an error it runs with failOnDataLoss=false, until it is idle (strict_again) or its
    options change; takes_a_batch: a trigger has begun, and its offset is not logged yet; began_with: the streams that
    existed when the run began.
    """

    def __init__(
        self,
        world: World,
        options: dict[str, str],
        reader_of: Callable[[Query], Any] | None = None,
        trace: list[Any] | None = None,
    ) -> None:
        """reader_of: what is in the place of the product's reader; trace: receives each step."""
        self.world, self._reader_of, self._trace = world, reader_of, trace
        self.options = options
        self.offsets: list[Json] = []
        self.committed = -1
        self.newest: tuple[list[Json], int] | None = None  # both logs before they were set back
        self.epoch = 0
        self.lenient = self.strict_again = False
        self.was_no_ack = False  # an earlier run had noAck
        self.had_pending_list = False  # an earlier run was without noAck
        self.modes = set[str]()  # of all runs: what they do with entries that do not fit
        self.has_removed = False  # a run had onCommit
        self.had_retries = False  # an earlier run had retryDelay: entries may wait
        self.was_limited = False  # an earlier run had maxDeliveries: batches may have been cut
        self.unlimited_batches = set[int]()  # of this checkpoint: runs without that option have begun to write them
        self.was_unlimited = False  # an operator has taken that option away from it (powers_lists)
        self.runs = self.triggers = 0
        self.until: int | None = None  # last entry of an AvailableNow run
        self.listed = set[str]()  # all streams that were ever in its list
        self.tasks = Tasks(world, self)
        self.takes_a_batch = False
        self.began_with = set[str]()
        self.back = dict[str, set[int]]()  # by stream, what its group was set back below before this trigger
        self._reader: StreamReader | HistoryReader | None = None
        self._limit: ReadLimit = ReadAllAvailable()
        self._below = set[int]()  # entries that were added below the query's position
        self._last_run = -1  # number of the last batch that was run

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Spark's ID of the query, which its checkpoint stores."""
        return f"q{self.epoch}"

    @property
    def running(self) -> bool:
        """Whether the process of the query lives."""
        return self._reader is not None

    @property
    def is_lenient(self) -> bool:
        """Whether the query continues if entries are lost."""
        return self.lenient or self.options.get("failOnDataLoss") == "false"

    @property
    def mode(self) -> str:
        """Mode of reading, for the kinds of failures."""
        options = self.options
        parts = [name for name in ("noAck", "claimIdle", "maxDeliveries") if name in options]
        parts += ["once maxDeliveries"] if self.was_unlimited and "maxDeliveries" not in options else []
        parts += ["once noAck"] if self.was_no_ack and "noAck" not in options else []
        return f"{'lenient' if self.is_lenient else 'strict'} {' '.join(parts) or 'plain'}"

    @property
    def held_back(self) -> float:
        """Seconds for which minEntriesPerTrigger may hold entries back."""
        delay = self.options.get("maxTriggerDelay", "15m")
        return duration(delay) / 1000 if "minEntriesPerTrigger" in self.options else 0.0

    def reads(self) -> list[str]:
        """Return the streams in the query's list, or those that exist for its pattern."""
        if "streamsPattern" in self.options:
            excluded = self.options.get("streamsExcept")
            return [name for name in self.world.names() if name in self.world.model.streams and name != excluded]
        return self.options["streams"].split(",")

    def logged(self, stream: str) -> str:
        """Return the position of a stream in the last logged offset."""
        return position_in(self.offsets[-1]["streams"].get(stream, "0-0")) if self.offsets else "0-0"

    def _at(self, stream: str) -> StreamOffset | None:
        """Return where the last logged offset is in a stream; None: it does not name the stream."""
        text: str = self.offsets[-1]["streams"].get(stream, "") if self.offsets else ""
        return StreamOffset.parse(text) if text else None

    def has_read(self, stream: str) -> bool:
        """Whether the checkpoint has a batch of a stream."""
        at = self._at(stream)
        return at is not None and at.number > 0

    def read_by_newest(self, stream: str) -> list[Entry]:
        """Return the entries of a stream that the checkpoint had read before it was set back."""
        streams = self.newest[0][-1]["streams"] if self.newest is not None else {}
        position = id_key(position_in(streams.get(stream, "0-0")))
        return [entry for entry in self.world.model.entries_of(stream) if entry.key <= position]

    def is_account_unknown(self, stream: str) -> bool:
        """Whether the last logged offset does not say how many entries of a stream were read, after a batch of it."""
        at = self._at(stream)
        return at is not None and at.number > 0 and at.read is None

    def is_older_copy(self, stream: str) -> bool:
        """Whether the commit mark of a stream knows a batch that the checkpoint does not have."""
        mark = Mark.parse(self.world.raw.get(committed_key(stream, GROUP, CONSUMER)))
        return Standing(self._at(stream) or StreamOffset(MIN_ID), mark).is_older

    @property
    def has_record(self) -> bool:
        """Whether the last logged offset names a record of failed batches (maxDeliveries)."""
        return bool(self.offsets) and bool(self.offsets[-1].get("record"))

    def begins_above(self, entry: Entry) -> bool:
        """Whether no batch has read the entry's stream, and the query begins above the entry (documented). If it was
        read, and created again, that is so as long as it looks like the one that was read (`_look_known`)."""
        at = self._at(entry.stream)
        is_below = at is not None and entry.key <= id_key(str(at.position))
        if at is not None and at.number and is_below:
            self._below.add(entry.n)
        return at is not None and not at.number and is_below

    def is_within_batch(self, entry: Entry) -> bool:
        """Whether an entry that is added now is within a range of the last batch: its stream was created again."""
        return bool(self.offsets) and has(_ranges(self.offsets[-1]).get(entry.stream, ()), entry)

    def looks_known(self, stream: str, left: int, has_group: bool) -> bool:
        """Whether a restored or new stream that so many entries have left looks like the one that was read. Documented:
        as many have left as the query had read, or no more than others had read in a group that is missing."""
        at = self._at(stream)
        if at is None or at.read is not None or has_group:
            return at is not None and at.read == left
        read = at.group_read or at.mark.read_at_begin
        return read is None or left <= read

    def looks_other(self, stream: str, added: int, last: str) -> bool:
        """Whether a stream of so many entries, with this last ID, is not the one that the checkpoint knows."""
        at = self._at(stream)
        return at is not None and (added < at.added or id_key(last) < id_key(str(at.position)))

    def begin_of(self, number: int) -> Mapping[str, str]:
        """Return the start positions of a batch of the offset log, by stream."""
        texts: Mapping[str, str] = self.offsets[number - 1]["streams"] if 0 < number <= len(self.offsets) else {}
        return {stream: position_in(text) for stream, text in texts.items()}

    def entries_since(self, number: int, only_old: bool = False) -> list[Entry]:
        """Return the entries in the ranges of the batches from this one on; only_old: those that were claimed, handed
        over or left."""
        found = []
        for offset in self.offsets[max(number, 0) :]:
            for name, parts in _ranges({**offset, "batch": {}} if only_old else offset).items():
                found += [entry for entry in self.world.model.entries_of(name) if has(parts, entry)]
        return found

    # -- runs ----------------------------------------------------------------------------------------------------

    def advance(self, available_now: bool = False) -> str:
        """Run one batch. Return `batch`, `idle` if there were no entries, `killed`, or `error` if an error ended it."""
        world = self.world
        world.pauses = 0
        is_taken = self._is_taken()
        for name in self.reads():
            world.model.stream(name).was_lenient |= self.is_lenient
        try:
            if self._reader is None:
                self._start(available_now)
            if self.committed == len(self.offsets) - 1 and not self._construct():
                self._must_be_alone(is_taken)
                self._note_what_is_left()
                return "idle"
            self._must_be_alone()
            self._run()
            self._must_be_alone(is_taken)
        except Killed:
            world.tell("   killed")
            self.die()
            return "killed"
        except RStreamError as error:
            world.tell(f"   {error}")
            named = self.offsets[-1]["streams"] if self.offsets else ()  # also without stream and group
            may_be_taken = {*named, *self.reads()}  # also what a pattern has found amid the trigger
            had_successor = world.rival is not None or is_taken or world.elsewhere.has_lease(may_be_taken)
            self.die()
            self._note("stops", type(error).__name__)
            world.operator.handle(error, had_successor)
            return "error"
        except Exception as error:  # noqa: BLE001 - any other error is a defect of the library
            self.die()
            frame = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"crash | {type(error).__name__} in {frame.filename.rpartition('/')[2]} {frame.name}"
            world.fail(kind, traceback.format_exc())
            return "error"
        else:
            return "batch"

    def _must_be_alone(self, was_taken: bool = False) -> None:
        if self.world.has_successor or (was_taken and self._is_taken()):
            self.world.fail(f"two queries | {self.mode}", "a query goes on although another one has its lease")

    def _is_taken(self) -> bool:
        """Whether another machine has the leases. A query over a pattern does not know of streams that were deleted, or
        have neither entries nor the group."""
        by_pattern, exists = "streamsPattern" in self.options, self.world.client.exists
        unfinished = _ranges(self.offsets[-1]) if self.committed < len(self.offsets) - 1 else ()
        reads = [name for name in self.reads() if not by_pattern or exists(name)]
        with unnoticed(self.world):
            seen = {name: self.world.see(name) for name in reads}
        reads = [name for name, of in seen.items() if not by_pattern or of.ids or of.position is not None]
        return self.world.elsewhere.has_lease([*reads, *unfinished])

    def die(self) -> None:
        """Kill the process."""
        if self._reader is None:
            return
        self._reader = None
        self.tasks.die()
        self.world.bury_process()
        self.world.births.update()

    def _settings(self) -> dict[str, str]:
        settings = {"url": self.world.server.url, "group": GROUP, "consumer": CONSUMER, **self.options}
        if "startingTimestamp" in settings:
            del settings["startingOffsets"]
        if "archivePath" in settings:
            settings["archivePath"] = self.world.archive
        if self.lenient:
            settings["failOnDataLoss"] = "false"
        return settings

    def another_reader(self) -> Any:
        """Return a reader with the options of this query, as another process has it."""
        if self._reader_of is not None:
            return self._reader_of(self)
        source_options = with_patience(SourceOptions.parse(self._settings()), PATIENCE)
        schema = WITH_VALUES if self.world.setup.has_values else SCHEMA
        columns = Columns(schema, True, source_options.mode, source_options.column_name_of_corrupt_record)
        limits = with_limits(SMALL, self.world.setup.limits)
        limits = replace(limits, prefetch_entries=self.world.setup.ahead, lease=TERMS)
        live = StreamReader(source_options, columns, time.monotonic, limits)
        return live if source_options.archive_path is None else HistoryReader(live, source_options, columns, limits)

    def _start(self, available_now: bool) -> None:
        self.runs += 1
        with unnoticed(self.world):
            self.began_with = {name for name in self.world.names() if self.world.see(name).exists}
        self.world.model.begun = True
        self.was_limited |= "maxDeliveries" in self.options
        self.was_no_ack |= self.options.get("noAck") == "true"
        self.modes.add(self.options.get("mode", "PERMISSIVE"))
        self.had_retries |= "retryDelay" in self.options
        self.has_removed |= "onCommit" in self.options
        self.had_pending_list |= self.options.get("noAck") != "true"
        self.world.tell(f"   start: {self._settings()}{' AvailableNow' if available_now else ''}")
        self._reader = self.another_reader()
        self._limit = self._reader.getDefaultReadLimit()
        self.until = len(self.world.model.entries) if available_now else None
        if available_now:
            self._reader.prepareForTriggerAvailableNow()
        if self.runs % 2:  # Spark may call it in later runs, too (S2)
            self._reader.initialOffset()
            self.world.births.update(begun=True)
        self.world.tick()

    def _construct(self) -> bool:
        """Plan the next batch and log it. Return whether there is one."""
        assert self._reader is not None
        if self.offsets:
            start = self.offsets[-1]
        else:
            start = self._reader.initialOffset()
            self.world.births.update(begun=True)
            if self.options.get("onNewCheckpoint") == "restart":
                self._begins_at(start)
        self.world.tick()
        if self.world.verbose:
            self.world.tell(f"   latestOffset({_shown(start)})")
        self._look_known()
        self.takes_a_batch = True
        self.triggers += 1
        self.back = {name: {*stream.back} for name, stream in self.world.model.streams.items()}
        try:
            end = _through_json(self._reader.latestOffset(start, self._limit))
        finally:
            self.takes_a_batch = False
        self._reader.reportLatestOffset()
        self.world.births.update()
        self.world.tick()
        if end == start:
            return False
        self.world.tell(f"   offsets/{len(self.offsets)}: {_shown(end)}")
        self._note("batch", *_places(end))
        self._check_limits(end)
        self._check_list(end)
        self.offsets.append(end)
        self._names(end)
        self._update_named_streams()
        for name, stream in self.world.model.streams.items():
            self._went_back(name, stream.back - self.back.get(name, set()))
        self.world.tick()
        if len(self.offsets) > 1:
            self._reader.commit(self.offsets[-2])
        return True

    def _look_known(self) -> None:
        """Record which entries of a stream that was created again are below the query's position. Documented: they are
        not read if it looks like the one that was read."""
        for entry in (self.world.model.entries[n] for n in sorted(self._below)):
            at = self._at(entry.stream)
            with unnoticed(self.world):
                head = self.world.head(entry.stream)
            if at is None or entry.key > id_key(str(at.position)):
                self._below.discard(entry.n)
            elif head is not None and not self.looks_other(entry.stream, *head):
                self.world.model.excuse([entry], Reason.BELOW_THE_BEGIN)

    def _went_back(self, name: str, numbers: set[int]) -> None:
        """Record that the server was restored amid the trigger, so that these entries may be delivered again, or are
        pending: the offset that has followed decides, as that of the last batch does."""
        with unnoticed(self.world):
            ours = self.world.see(name).ours() if numbers and name in self.offsets[-1].get("left", ()) else []
        is_shared = self.is_account_unknown(name) and OTHERS & self.world.model.stream(name).ever
        for entry in (self.world.model.entries[n] for n in numbers):
            if is_shared:
                entry.repeat_reasons.add(Reason.SHARED_SET_BACK)
            if entry.id in ours:
                entry.repeat_reasons.add(Reason.PENDING_BESIDE)

    def _run(self) -> None:
        """Run the last batch of the offset log."""
        assert self._reader is not None
        number = len(self.offsets) - 1
        if number:
            start = self.offsets[-2]
        else:
            start = self._reader.initialOffset()
            self.world.births.update(begun=True)
        self.world.tick()
        end = self.offsets[-1]
        self._come_late(number, end)
        partitions = list(self._reader.partitions(start, end))
        self.world.tick()
        if "maxDeliveries" not in self.options:
            self.unlimited_batches.add(number)
        self.tasks.run(self._reader, number, partitions, (_shown(start), _shown(end)))
        self.world.tick()
        self.committed = number
        self._note("sink", sorted(row.value[1] for row in self.world.sink.rows()) if self._trace is not None else [])
        self.world.tell(f"   commits/{number}")
        self.tasks.committed(number)
        self.world.tick()

    def _come_late(self, number: int, end: Json) -> None:
        """Record which entries of a batch may come after later ones: it is read without `ordered`, or it is run again
        under maxDeliveries, which may cut it."""
        late = set[Reason]()
        if self.options.get("ordered") != "true":
            late.add(Reason.WITHOUT_ORDER)
        if self.was_limited and number <= self._last_run:
            late.add(Reason.CUT)
        self._last_run = number
        for name, parts in _ranges(end).items() if late else ():
            for entry in self.world.model.entries_of(name):
                if has(parts, entry):
                    entry.late_reasons |= late

    def _note(self, *what: Any) -> None:
        if self._trace is not None:
            self._trace.append(what)

    def _note_what_is_left(self) -> None:
        """At an idle trigger: where the groups are, and what is pending for the query."""
        for name in self.reads() if self._trace is not None else ():
            seen = self.world.see(name)
            self._note("idle", name, seen.position, seen.ours())

    def _check_limits(self, end: Json) -> None:
        """Check that a batch keeps the limits of entries, and about that of bytes: an entry has two at least. Pieces of
        a batch that was cut keep those of the batch. A group that was set back may have pending entries that left the
        stream: they are missed, and do not count. What others hand over or take meanwhile changes the number, too."""
        held = Counter({name: sum(part.count for part in parts) for name, parts in _ranges(end).items()})
        held.subtract({name: self._missed(name, parts) for name, parts in _ranges(end).items()})
        if self.was_limited or any(_HANDED & self.world.model.stream(name).ever for name in held):
            return
        entries, size = self.options.get("maxEntriesPerTrigger"), self.options.get("maxBytesPerTrigger")
        limit = json.loads(entries or "null")
        together = [limit] if isinstance(limit, int) else []
        together += [max(1, int(size) // 2 + len(held))] if size and int(size) > 1 else [1] if size else []
        each = limit["*"] if isinstance(limit, dict) else None
        if any(held.total() > most for most in together) or (each and any(count > each for count in held.values())):
            self.world.fail(f"too large | {self.mode}", f"batch of {dict(held)}; {entries=} {size=}")

    def _check_list(self, end: Json) -> None:
        """Check that a batch that is planned has no entry of a producers' stream that is not in the list."""
        if foreign := sorted({*_ranges(end)} & {*self.world.names()} - {*self.reads()}):
            self.world.fail(f"not in the list | {self.mode}", f"batch of {foreign}; {self.reads()} are read")

    def _missed(self, name: str, parts: Sequence[Range]) -> int:
        """Return how many pending entries of these ranges have left the stream."""
        pending = self.world.model.entries_of(name, self.world.see(name).ours())
        return sum(bool(entry.removed_by) and has(parts, entry) for entry in pending)

    def _names(self, end: Json) -> None:
        """Record that the checkpoint names these entries of a batch. Others of its ranges may be released."""
        for name, parts in _ranges(end).items():
            for entry in self.world.model.entries_of(name, self.world.see(name).ours()):
                entry.only_pending &= not has(parts, entry)

    def _begins_at(self, start: Json) -> None:
        """Record that existing groups are set to where the query begins: it reads again what is above. Documented: it
        does not answer for entries that were removed before, also if they were pending for it."""
        for name, text in start["streams"].items():
            position = id_key(position_in(text))
            for entry in self.world.model.entries_of(name):
                if entry.key <= position:
                    self.world.model.excuse([entry], Reason.BEFORE)
                elif entry.removed_by:
                    self.world.model.excuse([entry], Reason.EARLY)
                else:
                    entry.repeat_reasons.add(Reason.RESTARTED)

    # -- actions of its operator ---------------------------------------------------------------------------------

    def set_back(self, offsets: int, committed: int) -> None:
        """Truncate both logs."""
        self.die()
        self.offsets = self.offsets[:offsets]
        self._update_named_streams()
        self.world.model.forget([name for name, stream in self.world.model.streams.items() if not stream.in_checkpoint])
        self.committed = min(committed, offsets - 1)
        self._last_run = min(self._last_run, self.committed)
        self.tasks.forget_after(self.committed)

    def change(self, options: dict[str, str]) -> None:
        """Change the options from the next start on, except the start of new groups."""
        kept = ("startingOffsets", "startingTimestamp")
        self.options = {**options, **{name: self.options[name] for name in kept if name in self.options}}
        self.lenient = False
        self.listed |= set(self.reads())

    def read_all(self) -> None:
        """Put all streams that were ever in the query's list into it."""
        if "streams" in self.options:
            self.options = {**self.options, "streams": ",".join(sorted(self.listed | set(self.reads())))}

    def start_new_checkpoint(self) -> None:
        """Start a new checkpoint."""
        self.die()
        self.offsets, self.committed, self.newest, self._last_run = [], -1, None, -1
        self.unlimited_batches.clear()
        self._update_named_streams()
        self.epoch += 1

    def put_back(self) -> None:
        """Use the newest checkpoint instead of an older copy."""
        assert self.newest is not None
        self.die()
        self.offsets, self.committed = self.newest
        self._update_named_streams()
        self.newest = None
        for name in self.reads():
            if name in self.world.model.streams:
                self.world.model.stream(name).suffers("checkpoint put back")
        # Documented: what the older copy has left pending, or is delivered again since, also to others, is read again.
        with unnoticed(self.world):
            seen = {name: self.world.see(name) for name in self.reads()}
        read = {row.value[1] for row in self.world.sink.rows()}
        for entry in self.world.model.entries.values():
            of = seen.get(entry.stream, Seen())
            is_above = of.position is not None and entry.key > id_key(of.position)
            if is_above or entry.id in of.ours() or (entry.id in of.pending and entry.n in read):
                entry.repeat_reasons.add(Reason.NEWER_CHECKPOINT)
        # Documented: it goes on where the operator has set the group, if no trigger of that copy has followed.
        for name in seen:
            mark = Mark.parse(self.world.raw.get(committed_key(name, GROUP, CONSUMER)))
            for entry in self.world.model.entries_of(name) if mark is not None and mark.is_seek else ():
                if entry.key > id_key(str(mark.id)):
                    entry.repeat_reasons.add(Reason.SOUGHT)
        # Documented: the older copy has replaced the record, and discarded the notes, of the newer one's last batch.
        for name, parts in _ranges(self.offsets[-1]).items() if self.has_record else ():
            for entry in self.world.model.entries_of(name):
                if has(parts, entry):
                    entry.repeat_reasons.add(Reason.NEWER_CHECKPOINT)
        unfit = [entry for entry in self.world.model.entries.values() if not entry.fits]
        self.world.model.excuse(unfit, Reason.NOTE_DISCARDED)

    def _update_named_streams(self) -> None:
        """Update which streams the last offset names. Removals in other streams may go unnoticed (see Limits)."""
        named = self.offsets[-1]["streams"] if self.offsets else ()
        for name, stream in self.world.model.streams.items():
            if stream.in_checkpoint and name not in named:
                (self.world.births.left if name in self.reads() else self.world.births.dropped)(name)
            stream.in_checkpoint = name in named


def _through_json(offset: Json) -> Json:
    parsed: Json = json.loads(json.dumps(offset))
    return parsed


def _ranges(offset: Json) -> dict[str, list[Range]]:
    """Return the ranges of a batch by stream."""
    ranges: dict[str, list[Range]] = {}
    for name, texts in (*((name, [text]) for name, text in offset["batch"].items()), *offset.get("old", {}).items()):
        ranges.setdefault(name, []).extend(Range.parse(name, text) for text in texts)
    return ranges


def _places(offset: Json) -> list[Any]:
    """Return where a batch ends in each stream, how many entries were read by then, and the bounds of its ranges."""
    ends = [(name, StreamOffset.parse(text)) for name, text in offset["streams"].items()]
    parts = [part for parts in _ranges(offset).values() for part in parts]
    return [
        *((name, str(at.position), at.read) for name, at in ends),
        *((str(part.after), str(part.last), part.count) for part in parts),
    ]


def has(parts: Sequence[Range], entry: Entry) -> bool:
    """Whether an entry is in one of these ranges."""
    return any(id_key(str(part.after)) < entry.key <= id_key(str(part.last)) for part in parts)


def _shown(offset: Json) -> str:
    return json.dumps({k: v for k, v in offset.items() if k not in ("format", "group", "consumer")})
