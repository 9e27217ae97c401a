"""Offset that Spark keeps in its log: where a query is in each stream, and the batch that ends there.

A batch is the entries that were pending for the query's consumer when the driver looked, in the ranges that the offset
names. A replay after a crash reads these ranges again: it has the same entries, or it is an error (FACTS S5, S6).

    {"format": 1, "group": "billing", "consumer": "spark",
     "token": "5f1c9a0b-e37d41aa",                                  names of checkpoint and batch (commit_mark), "" if
                                                                    there was none yet
     "streams": {"orders": "17-0 12.5f1c9a0b-e37d41aa 5000 9000"},  see StreamOffset
     "batch": {"orders": "9-0 17-0 1000 1700000000000"},            entries above the previous position: see Range
     "old": {"orders": ["0-0 5-0 3 1700000000000"]},                entries at or below it: claimed, released, handed
                                                                    over, or left by an earlier checkpoint
     "owed": {"orders": "3-0 9-0 500 1690000000000"},               the batch before, if it was not acknowledged yet
     "left": ["returns"],                                           streams that may have old entries which no batch
                                                                    has. Without the field: all streams
     "record": "orders",                                            with maxDeliveries: only the record of failed
                                                                    batches, beside this stream, proves that the batch
                                                                    was read
     "notes": true,                                                 only if its tasks may write dead letters
     "noAck": true}                                                 only if it was read without a pending list

There is one string per stream, not one object: it is written and parsed in a third of the time. An offset whose batch
has no entry keeps a corrected position (failOnDataLoss=false). Offsets of unreleased versions, newer formats and
unknown fields are refused: to ignore them could mean to read entries twice, or never.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple, TypeVar

from spark_streams.base.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.base.untyped import Json
from spark_streams.connector.errors import OffsetError
from spark_streams.connector.source.commit_mark import Mark


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one stream with after < ID ≤ last. An entry that is handed over later is not of the range."""

    stream: str
    after: StreamId
    last: StreamId
    count: int = 0  # how many they are; 0 if that is not known
    # when they were delivered to the query's consumer at the latest (milliseconds of the server's clock); 0: the query
    # is alone in the group, nobody can hand entries over, and no clock decides
    until: int = 0

    @classmethod
    def parse(cls, stream: str, text: str) -> Range:
        """Parse the text that `str` returns. Raises ValueError, InvalidStreamId for any other text."""
        after, last, count, until = text.split(" ")
        return cls(stream, StreamId.parse(after), StreamId.parse(last), int(count), int(until))

    def __str__(self) -> str:
        """Return the text for an offset, which names the stream beside it."""
        return f"{self.after} {self.last} {self.count} {self.until}"

    def covers(self, entry: StreamId) -> bool:
        """Whether the ID of an entry is within the range."""
        return self.after < entry <= self.last

    @property
    def is_empty(self) -> bool:
        """Whether it can have no entry."""
        return self.last <= self.after


def around(stream: str, ranges: Iterable[Range], last: StreamId, until: int = 0) -> list[Range]:
    """Return what the stream has up to `last` that is in none of these ranges. Pure."""
    found, after = list[Range](), MIN_ID
    for taken in sorted(ranges, key=attrgetter("after")):
        found.append(Range(stream, after, min(taken.after, last), until=until))
        after = max(after, taken.last)
    found.append(Range(stream, after, last, until=until))
    return [entries for entries in found if not entries.is_empty]


FORMAT = 1
HISTORY = "history"  # in an offset while the archive is read (source.archive.history)
_SHOWN = 200  # characters of an offset in an error
_T = TypeVar("_T")
_FIELDS = {
    *("format", "group", "consumer", "token", "streams", "batch", "old", "owed", "left", "record", "notes", "noAck"),
    "report",  # spark.batch_starts adds it on a Spark before 4.2
}


class StreamOffset(NamedTuple):
    """Where the query is in one stream.

    17-0 12.5f1c9a0b-e37d41aa 5000 9000      alone
    17-0 12.5f1c9a0b-e37d41aa 5000 9000 2    alone, and 2 are missed
    17-0 12.5f1c9a0b-e37d41aa - 9000 2 5200  shared
    """

    # The last batch that has entries of the stream ends here.
    position: StreamId
    # Number and name of that batch. The number counts the stream's batches, also those of earlier checkpoints.
    number: int = 0
    token: str = ""
    # Entries that were ever added up to the position. None: unknown, as in a group that other consumers read from.
    read: int | None = None
    # Entries that were ever added to the stream.
    added: int = 0
    # Lost entries that the server does not count as read by the group.
    missed: int = 0
    # Entries that a shared group had read up to the position, or fewer, as the server knew them. If it knows fewer
    # later, or no number, it has forgotten them (FACTS R90).
    group_read: int = 0

    @classmethod
    def parse(cls, text: str) -> StreamOffset:
        """Parse the text that `str` returns. Raises ValueError, InvalidStreamId for any other text."""
        position, name, read, added, *more = text.split(" ")
        number, dot, token = name.partition(".")
        if not dot or len(more) > 2:
            raise ValueError(text)
        return cls(
            StreamId.parse(position),
            int(number),
            token,
            None if read == "-" else int(read),
            int(added),
            *map(int, more),
        )

    def __str__(self) -> str:
        read = "-" if self.read is None else self.read
        group_read = f" {self.group_read}" if self.group_read else ""
        missed = f" {self.missed}" if self.missed or group_read else ""
        return f"{self.position} {self.number}.{self.token} {read} {self.added}{missed}{group_read}"

    @property
    def mark(self) -> Mark:
        """The commit mark of the last batch."""
        return Mark(self.position, self.number, self.token)

    @property
    def known_read(self) -> int:
        """How many entries the group had read when this offset was made, as far as that was known."""
        return self.group_read if self.read is None else self.read

    def moved(self, position: StreamId, read: int | None, missed: int = 0) -> StreamOffset:
        """Return the same at another position. Before the first batch, the token says what was read up to there."""
        token = self.token if self.number else Mark.at_begin(position, read).token
        return self._replace(position=position, token=token, read=read, missed=missed, group_read=0)


@dataclass(frozen=True)
class Offset:
    """Where a query is in its streams, and the batch that ends there."""

    # Owner of the pending list.
    group: str
    consumer: str
    # Where the query is, per stream.
    at: Mapping[str, StreamOffset] = field(default_factory=dict)
    # Entries of the batch above the previous position.
    new: Mapping[str, Range] = field(default_factory=dict)
    # Entries of the batch at or below the previous position.
    old: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    # `new` of the batch before, if it was not acknowledged when this offset was made.
    unacknowledged: Mapping[str, Range] = field(default_factory=dict)
    # Streams in which entries at or below the position may be pending that no batch has, because others were in the
    # group, an earlier checkpoint has left them, or they are set aside. Of every other stream, all that is pending up
    # to the position is committed with this batch.
    left: frozenset[str] = frozenset()
    # Name of the batch.
    token: str = ""
    # False: the batch is read without one, and the group is a bookmark.
    has_pending_list: bool = True
    # The driver has opened the notes of the batch's streams (task.notes).
    notes: bool = False
    # The stream beside which the record of failed batches is (pending.poison_record), "": there is none. With a record,
    # the batch is only acknowledged if that says that the batch was read.
    record: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Offset:
        """Parse an offset. Raises OffsetError for anything that `to_json` did not write."""
        if isinstance(value, Mapping) and "version" in value and "format" not in value:
            raise OffsetError(
                f"an unreleased spark-streams has written the checkpoint's offset {_shown(value)}. Start the query "
                "with the same group and a new checkpoint directory. It continues after the last acknowledged entry, "
                "so the last batch may be written a second time"
            )
        if not isinstance(value, Mapping) or type(number := value.get("format")) is not int or number < 1:
            raise OffsetError(
                f"the checkpoint's offset {_shown(value)} was not written by rstream. Start the query with its own "
                "checkpoint directory, or with a new one"
            )
        if number > FORMAT:
            raise _newer(f"has format {number}, and this spark-streams reads format {FORMAT}", value)
        if HISTORY in value:
            raise OffsetError(
                "the query has not read its archive to the end. Set option archivePath again, with the same path. The "
                f"offset: {_shown(value)}"
            )
        unknown = sorted(map(str, {*value} - _FIELDS))
        if unknown:
            raise _newer(f"has fields that this spark-streams does not know ({', '.join(unknown)})", value)
        try:
            at = {stream: StreamOffset.parse(text) for stream, text in value["streams"].items()}
            shared = {stream for stream, position in at.items() if position.read is None}
            return cls(
                group=str(value["group"]),
                consumer=str(value["consumer"]),
                at=at,
                new=_ranges(value["batch"]),
                old={
                    stream: tuple(Range.parse(stream, text) for text in texts)
                    for stream, texts in value.get("old", {}).items()
                },
                unacknowledged=_ranges(value.get("owed", {})),
                left=frozenset(shared | {str(stream) for stream in value["left"]} if "left" in value else at),
                token=str(value.get("token", "")),
                has_pending_list=not value.get("noAck", False),
                notes=bool(value.get("notes", False)),
                record=str(value.get("record", "")),
            )
        except (KeyError, AttributeError, TypeError, ValueError, InvalidStreamId) as error:
            raise OffsetError(
                f"the checkpoint's offset {_shown(value)} cannot be read: {_shown(error)}. Start the query with its "
                "own checkpoint directory, or with a new one"
            ) from None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form, as drawn above."""
        optional: dict[str, object] = {
            "old": {stream: [str(part) for part in parts] for stream, parts in sorted(self.old.items())},
            "owed": {stream: str(unacknowledged) for stream, unacknowledged in sorted(self.unacknowledged.items())},
            "record": self.record,
            "notes": self.notes,
            "noAck": not self.has_pending_list,
        }
        return {
            "format": FORMAT,
            "group": self.group,
            "consumer": self.consumer,
            "token": self.token,
            "streams": {stream: str(at) for stream, at in sorted(self.at.items())},
            "batch": {stream: str(new) for stream, new in sorted(self.new.items())},
            **({"left": sorted(s for s in self.left if self.at[s].read is not None)} if self.token else {}),
            **{name: value for name, value in optional.items() if value},
        }

    def __getitem__(self, stream: str) -> StreamId:
        """Return the position in a stream; 0-0 if the offset does not name it."""
        at = self.at.get(stream)
        return MIN_ID if at is None else at.position

    @cached_property
    def positions(self) -> Mapping[str, StreamId]:
        return {stream: at.position for stream, at in self.at.items()}

    @property
    def streams(self) -> list[str]:
        return sorted(self.at)

    @property
    def taken_from(self) -> list[str]:
        """Streams of which the batch that ends here has entries."""
        return sorted({*self.new, *self.old})

    def ranges(self, stream: str) -> tuple[Range, ...]:
        """Return the entries that the batch has of a stream."""
        new = self.new.get(stream)
        return (*self.old.get(stream, ()), *(() if new is None else (new,)))

    def pending(self, stream: str) -> tuple[Range, ...]:
        """Return the same, if they are pending until they are acknowledged."""
        return self.ranges(stream) if self.has_pending_list else ()

    @property
    def all_ranges(self) -> list[Range]:
        """The entries that the batch that ends here has."""
        return [part for stream in self.taken_from for part in self.ranges(stream)]

    @property
    def held(self) -> int:
        """How many entries the batch that ends here has."""
        return sum(part.count for part in self.all_ranges)

    def is_of_this_batch(self, stream: str) -> bool:
        """Whether the batch that ends here is the stream's last one."""
        return stream in self.new or stream in self.old or (bool(self.token) and self.at[stream].token == self.token)

    def without(self, streams: Iterable[str]) -> Offset:
        """Return this offset without these streams."""
        removed = set(streams)
        if not removed:
            return self
        return replace(
            self,
            at=_without(self.at, removed),
            new=_without(self.new, removed),
            old=_without(self.old, removed),
            unacknowledged=_without(self.unacknowledged, removed),
            left=self.left - removed,
        )

    def corrected(self, at: Mapping[str, StreamOffset], moved: Collection[str], pending: Collection[str]) -> Offset:
        """Return this offset with other positions of these streams. moved: those at another place. Of these, the batch
        has no entries any more. pending: those of them with pending entries, which no batch may have."""
        bare = self.without(moved)
        return replace(bare, at={**self.at, **at}, left=bare.left.union(pending))


def _without(values: Mapping[str, _T], removed: Collection[str]) -> Mapping[str, _T]:
    return {stream: value for stream, value in values.items() if stream not in removed}


def _ranges(texts: Mapping[str, Json]) -> dict[str, Range]:
    return {stream: Range.parse(stream, text) for stream, text in texts.items()}


def position_in(text: str) -> str:
    """Return the position in the text of a StreamOffset."""
    return text.partition(" ")[0]


def _shown(value: object) -> str:
    """Return the first characters of an offset for an error: one of 10,000 streams has a megabyte."""
    text = str(dict(value)) if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


def _newer(problem: str, value: Mapping[str, Json]) -> OffsetError:
    return OffsetError(
        f"the checkpoint's offset {problem}. A newer spark-streams has written it. Install a spark-streams at least as "
        f"new as the one that ran this query last, on the driver and on the executors. The offset: {_shown(value)}"
    )
