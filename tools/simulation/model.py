"""What is true of every entry that was ever added, and of the streams: who must get it, and why somebody may not. Pure.

An entry is *due* when it must reach the sink: it is not there yet, and nothing excuses that. Taken away while it is
due, it is *lost*, and that must be *told*: named in an error, or counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tools.chaos.history import Place, id_key

# Why nobody need miss an entry; the query may have seen it all the same.
EARLY = "gone before there was a group, or a checkpoint"
GIVEN_UP = "given up with its batch (at-most-once)"
# A cause that lasts until the checkpoint names the stream: its commit mark may be of the checkpoint before.
OTHER_CHECKPOINT = "another checkpoint was used"


@dataclass
class Entry:
    """n: its number, the value of its field.

    gone: what took it out of its stream, "" while it is there; excuses: why it may be missing in the sink; again: why
    it may be there twice; named: an error has spoken of its loss; settled: its loss was counted, or given up;
    shuffled: it may come out of order; theirs: another consumer of the group has it; handed: another client has claimed
    it for the query's consumer; acknowledged: the query has sent its XACK; gone_unacknowledged: it went before that;
    looked_for: a task of its batch has run since. One execution of the task may have read it before it went, and this
    one may have found it missing.
    """

    n: int
    stream: str
    id: str
    gone: str = ""
    excuses: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)
    named: bool = False
    settled: bool = False
    shuffled: bool = False
    theirs: str = ""
    handed: bool = False
    acknowledged: bool = False
    gone_unacknowledged: bool = False
    looked_for: bool = False

    @property
    def place(self) -> Place:
        """Where it is, or was."""
        return self.stream, self.id

    @property
    def key(self) -> tuple[int, int]:
        """Its id, for ordering."""
        return id_key(self.id)


@dataclass
class Stream:
    """One name on the server.

    born: the group has been seen on it, under this checkpoint; known: the checkpoint's last offset names it;
    appeared: the moment when its first entry came; causes: what has happened to it that the query may stop for,
    since it was last seen to be at peace; ever: all of these; counted: entries that the log has said to be lost,
    and nobody has held against the model yet (a run that is killed may say them again); remembered: how many the
    checkpoint had counted when the query was last at peace; moved_at_first: an operator has moved its group before
    there was a checkpoint, and nobody knows what it has had by then; skipped: numbers of entries over which the group
    was set forward since the query was last at peace, while nobody else read from it; was_lenient: a run with
    failOnDataLoss=false has read the stream since the query was last at peace with it.
    Of the sink's stream, which is looked at only when a batch is written: at_batch: how many things had happened to it
    when the last batch began; seen: the same of the last one that was committed.
    """

    name: str
    born: bool = False
    known: bool = False
    appeared: int = 0
    causes: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    forgiven: set[str] = field(default_factory=set)
    counted: int = 0
    remembered: int = 0
    moved_at_first: bool = False
    skipped: set[int] = field(default_factory=set)
    was_lenient: bool = False
    happened: int = 0
    at_batch: int = 0
    seen: int = 0

    def suffers(self, cause: str) -> None:
        """Something has happened to it."""
        self.causes.add(cause)
        self.ever.add(cause)
        self.happened += 1


class Model:
    """sunk: the numbers that committed batches have brought to the sink; happened: how many powers have been used."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.streams: dict[str, Stream] = {}
        self.sunk: set[int] = set()
        self.happened = 0
        self.begun = False  # the query has been started
        self._places: dict[Place, Entry] = {}

    def stream(self, name: str) -> Stream:
        """The stream of this name."""
        if name not in self.streams:
            self.streams[name] = Stream(name, appeared=self.happened)
        return self.streams[name]

    def add(self, stream: str, entry: str) -> Entry:
        """A producer adds one."""
        self.stream(stream)
        made = Entry(len(self.entries) + 1, stream, entry)
        self.entries[made.n] = made
        self._places[made.place] = made
        return made

    def at(self, stream: str, entry: str) -> Entry | None:
        """The entry of this place."""
        return self._places.get((stream, entry))

    def of(self, stream: str, ids: Iterable[str] | None = None) -> list[Entry]:
        """The entries of a stream with these ids; all that were ever there where none are given."""
        if ids is None:
            return [one for one in self.entries.values() if one.stream == stream]
        return [self._places[stream, one] for one in ids if (stream, one) in self._places]

    def alive(self, stream: str) -> list[Entry]:
        """The entries that the stream holds."""
        return [one for one in self.of(stream) if not one.gone]

    def is_due(self, one: Entry) -> bool:
        """Whether it must reach the sink and has not yet."""
        return not one.excuses and one.n not in self.sunk

    def take(self, taken: Collection[Entry], cause: str) -> None:
        """These are gone from their streams."""
        for one in taken:
            one.gone = one.gone or cause
            one.gone_unacknowledged = not one.acknowledged
            stream = self.stream(one.stream)
            if not (stream.born and stream.known):
                one.excuses.add(EARLY)
                if self.begun:
                    stream.suffers(cause)
            elif self.is_due(one) or one.theirs:
                stream.suffers(cause)

    def forget(self, names: Iterable[str]) -> None:
        """The checkpoint names these streams no more: of what is gone from them it knows nothing (a row under
        Limits)."""
        for name in names:
            self.excuse([one for one in self.of(name) if one.gone], EARLY)

    def excuse(self, some: Iterable[Entry], why: str) -> None:
        """These may be missing in the sink."""
        for one in some:
            one.excuses.add(why)

    def hand(self, some: Iterable[Entry], consumer: str) -> None:
        """Another consumer of the group has been given these: it may keep them, or leave them to us."""
        for one in some:
            one.theirs, one.shuffled = consumer, True
            one.excuses.add("theirs")
            one.again.add("theirs")

    def is_shared(self, name: str) -> None:
        """Another consumer is in the group. Documented: over what the group was set forward before the query looks
        again, the other one may have read."""
        stream = self.stream(name)
        self.excuse([self.entries[n] for n in stream.skipped], "skipped, and nobody can tell")
        stream.skipped.clear()

    def lose_handed(self, pending: Iterable[Entry]) -> None:
        """What was pending for the query's consumer is pending no more. Documented: the query does not know of entries
        that another client has handed to it, until it looks; then it gives them to a consumer of another name."""
        self.excuse([one for one in pending if one.handed], "handed over, and deleted before the query looked")

    def give_back(self, some: Iterable[Entry]) -> None:
        """These are ours again."""
        for one in some:
            one.theirs = ""
            one.excuses.discard("theirs")

    def missing(self, streams: Collection[str]) -> list[Entry]:
        """Entries of these streams that are due, and whose loss, if they are lost, was not settled."""
        return [
            one
            for one in self.entries.values()
            if one.stream in streams and self.streams[one.stream].born and self.is_due(one) and not one.settled
        ]
