"""State of every entry that was ever added, and of the streams: whether it must reach the sink, or why not. Pure.

An entry is *due* if it must reach the sink: it is not there yet, and nothing excuses that. If it is removed while it is
due, it is *lost*, and the loss must be *reported*: named in an error, or counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from spark_streams.operations.verify.history import Place, id_key
from tools.simulation.reasons import Reason

# A cause that lasts until the checkpoint names the stream: its commit mark may be of the checkpoint before.
OTHER_CHECKPOINT = "another checkpoint was used"
# Others have had entries of the group: since then the query may not know what it has read.
OTHERS = {"others read", "entries taken from us"}
RETURNED = "evicted returned"  # the query may stop without need when it has the stream again (a row under Limits)
# What the query has removed itself (onCommit), and an older copy of the checkpoint, or of the commit log, has not read.
REMOVED_ITSELF, REMOVED_WITH_COMMIT = "removed by the query", "removed by the query, and its commit is lost"


@dataclass
class Entry:
    """An entry. n: its number; fields: as they were written. Field `n` is the number, unless it is an entry that was
    sent back.

    removed_by: event that removed it from its stream, "" while it is there; excuses: why it may be missing in the
    sink; repeat_reasons: why it may be there twice; late_reasons: why it may come after later ones; lenient_reasons:
    why a lenient query may not count its loss; named: an error has reported its loss; settled: its loss was counted,
    or given up; shuffled: it may arrive out of order; theirs: other consumer for which it is pending; only_pending: it
    is pending for the query's consumer or for none, and the checkpoint does not name it: another client has claimed or
    released it, an earlier checkpoint has left it, or `seek` has passed over it; acknowledged: the query has sent its
    XACK; removed_unacknowledged: it was removed before that; looked_for: a task of its batch has run since. One
    execution of the task may have read it before the removal, and this one may have missed it; archived: it is in the
    archive, and may have left the stream.
    """

    n: int
    stream: str
    id: str
    fields: Mapping[str, str] = field(default_factory=dict)
    removed_by: str = ""
    excuses: set[Reason] = field(default_factory=set)
    repeat_reasons: set[Reason] = field(default_factory=set)
    late_reasons: set[Reason] = field(default_factory=set)
    lenient_reasons: set[Reason] = field(default_factory=set)
    named: bool = False
    settled: bool = False
    shuffled: bool = False
    theirs: str = ""
    only_pending: bool = False
    acknowledged: bool = False
    removed_unacknowledged: bool = False
    looked_for: bool = False
    archived: bool = False

    @property
    def place(self) -> Place:
        """Stream and ID."""
        return self.stream, self.id

    @property
    def key(self) -> tuple[int, int]:
        """ID, for ordering."""
        return id_key(self.id)

    @property
    def fits(self) -> bool:
        """Whether its fields fit the query's schema."""
        return self.fields.get("v", "0").isdecimal()


@dataclass
class Stream:
    """State of one stream name.

    "At peace": the query is idle, and the verdict has compared everything (verdict.at_peace).

    born: the group has existed on it, under this checkpoint; in_checkpoint: the checkpoint's last offset names it;
    appeared: number of events before its first entry; causes: events since the last peace for which the query may stop;
    ever: all events; counted: entries that the log has reported as lost, and that the verdict has not compared yet (a
    killed run may report them again); runs: the runs that have reported them; told, told_by: what had been reported at
    the last peace, and by which runs: another run may report it once more; moved_at_first: an operator has moved its
    group before the first checkpoint, so that nobody knows what it has read; removed_at_first: before that, unread
    entries have left it, and others were in its group; skipped: numbers of entries over which the group was set forward
    since the last peace, while no other consumer read from it; gone: the same of those that had left the stream; back:
    numbers of entries below which the group was set back, or restored, since then; was_lenient: a run with
    failOnDataLoss=false has read the stream since the last peace.

    Of the sink's stream, which matters only when a batch is written: at_batch: its number of events when the last batch
    began; seen: the same of the last committed batch.
    """

    name: str
    born: bool = False
    in_checkpoint: bool = False
    appeared: int = 0
    causes: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    forgiven: set[str] = field(default_factory=set)
    counted: int = 0
    runs: set[int] = field(default_factory=set)
    told: int = 0
    told_by: set[int] = field(default_factory=set)
    moved_at_first: bool = False
    removed_at_first: bool = False
    skipped: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    back: set[int] = field(default_factory=set)
    was_lenient: bool = False
    happened: int = 0
    at_batch: int = 0
    seen: int = 0

    def suffers(self, cause: str) -> None:
        """Record an event of the stream."""
        self.causes.add(cause)
        self.ever.add(cause)
        self.happened += 1


class Model:
    """Entries and streams of a run. sunk: numbers in the sink from committed batches; happened: number of events."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.streams: dict[str, Stream] = {}
        self.sunk: set[int] = set()
        self.happened = 0
        self.begun = False  # the query has been started
        self._places: dict[Place, Entry] = {}

    def stream(self, name: str) -> Stream:
        """Return the stream of this name."""
        if name not in self.streams:
            self.streams[name] = Stream(name, appeared=self.happened)
        return self.streams[name]

    def add(self, stream: str, entry: str, fields: Mapping[str, str] | None = None) -> Entry:
        """Add an entry. fields: if they are not its number alone."""
        self.stream(stream)
        number = len(self.entries) + 1
        added = Entry(number, stream, entry, {"n": str(number)} if fields is None else fields)
        self.entries[added.n] = added
        self._places[added.place] = added
        return added

    def entry_at(self, stream: str, entry: str) -> Entry | None:
        """Return the entry with this stream and ID, or None."""
        return self._places.get((stream, entry))

    def number_of(self, written: int, stream: str, entry: str) -> int:
        """Return the number of the entry at a place, whose field `n` is `written`; that value itself if it is another
        entry's."""
        found = self._places.get((stream, entry))
        return found.n if found is not None and found.fields["n"] == str(written) else written

    def entries_of(self, stream: str, ids: Iterable[str] | None = None) -> list[Entry]:
        """Return the entries of a stream with these IDs, or all entries that it ever had."""
        if ids is None:
            return [entry for entry in self.entries.values() if entry.stream == stream]
        return [self._places[stream, entry_id] for entry_id in ids if (stream, entry_id) in self._places]

    def alive(self, stream: str) -> list[Entry]:
        """Return the entries that the stream holds."""
        return [entry for entry in self.entries_of(stream) if not entry.removed_by]

    def is_due(self, entry: Entry) -> bool:
        """Whether an entry must reach the sink and has not yet."""
        return not entry.excuses and entry.n not in self.sunk

    def take(self, taken: Collection[Entry], cause: str) -> None:
        """Remove entries from their streams."""
        for entry in taken:
            entry.removed_by = entry.removed_by or cause
            entry.removed_unacknowledged = not entry.acknowledged
            stream = self.stream(entry.stream)
            if not (stream.born and stream.in_checkpoint):
                entry.excuses.add(Reason.EARLY)
                if self.begun:
                    stream.suffers(cause)
            # Documented: what a new checkpoint reads again is reported, too.
            elif self.is_due(entry) or entry.theirs or _is_read_again(entry):
                stream.suffers(cause)

    def forget(self, names: Iterable[str]) -> None:
        """Excuse removed entries of streams that the checkpoint no longer names (a row under Limits)."""
        for name in names:
            self.excuse([entry for entry in self.entries_of(name) if entry.removed_by], Reason.EARLY)

    def excuse(self, entries: Iterable[Entry], why: Reason) -> None:
        """Record why these entries may be missing in the sink."""
        for entry in entries:
            entry.excuses.add(why)

    def deliver_to_other(self, entries: Iterable[Entry], consumer: str) -> None:
        """Record that entries are pending for another consumer of the group. The query may receive them later, or
        never."""
        for entry in entries:
            entry.theirs, entry.shuffled = consumer, True
            entry.excuses.add(Reason.THEIRS)

    def is_shared(self, name: str) -> None:
        """Record that another consumer is in the group.

        Documented: it may have read the entries over which the group was set forward before the query's next lookup.
        """
        stream = self.stream(name)
        self.excuse([self.entries[n] for n in stream.skipped | stream.gone], Reason.SKIPPED_BESIDE)
        stream.skipped.clear()
        stream.gone.clear()
        self.goes_back(name)

    def goes_back(self, name: str) -> None:
        """Record that the group is shared, or was at the last batch. Documented: the query goes on where it was set."""
        for n in self.stream(name).back:
            self.entries[n].repeat_reasons.add(Reason.SHARED_SET_BACK)
        self.stream(name).back.clear()

    def excuse_only_pending(self, pending: Iterable[Entry]) -> None:
        """What was pending is pending no more. Documented: the query does not know of entries that only the pending
        list names, until they are in a batch."""
        self.excuse([entry for entry in pending if entry.only_pending], Reason.NOT_PENDING_ANY_MORE)

    def pass_over(self, pending: Iterable[Entry], position: tuple[int, int]) -> None:
        """`rstream groups seek` sets the group there: of entries below, those that are pending are still read."""
        for entry in pending:
            entry.only_pending |= entry.key <= position

    def give_back(self, entries: Iterable[Entry]) -> None:
        """Record that these entries are pending for the query again."""
        for entry in entries:
            entry.theirs = ""
            entry.excuses.discard(Reason.THEIRS)

    def missing(self, streams: Collection[str]) -> list[Entry]:
        """Return the due entries of these streams whose loss was not settled."""
        return [
            entry
            for entry in self.entries.values()
            if entry.stream in streams and self.streams[entry.stream].born and self.is_due(entry) and not entry.settled
        ]


def _is_read_again(entry: Entry) -> bool:
    """Whether a new checkpoint reads an entry that the one before has not acknowledged."""
    return Reason.A_NEW_CHECKPOINT in entry.repeat_reasons and not entry.acknowledged
