"""The offset that Spark keeps in its log: where each stream's batch ends, and what the batch held.

A batch is (start, end]. What it held is on the server, in the pending list of our consumer; the offset says whose list
that is, and how many entries it must hold, so that a replay after a crash is the same batch or an error, never a
smaller one (FACTS S5, S6).

    {"version": 3, "group": "billing", "consumer": "spark",
     "token": "5f1c9a0be37d",                                       the batch's own name, "" where there was none yet
     "streams": {"orders": "1700000000000-0"},                      where each stream stands
     "batch": {"orders": {"count": 1000, "owned": true,             what the batch that ends here took from it,
                          "after": "1690000000000-0"}},             above this id
     "claimed": {"orders": [{"consumer": "spark~claim~5f1c9a0be37d", "count": 3}]},   what it took over from others
     "counts": {"orders": {"read": 5000, "added": 9000}},           entries ever added: up to where the query
                                                                    stands, and in all
     "losses": {"orders": 2},                                       entries counted as lost since the first batch
     "notes": true,                                                 only if its tasks may leave dead letters
     "noAck": true}                                                 only if it was read without a pending list

`counts` is what losses are held against (group.account); `"shared": true` stands with it where others read from the
group, too, and `"before": true` if `read` is of where the batch began: its number of entries is an estimate, and its
tasks tell how many they have read (group.rows_read). An offset that differs from the one before only in `losses`,
`counts` or `streams` ends a batch of no entries: it makes the checkpoint remember a loss that was counted
(failOnDataLoss=false).

Versions. 2: no `losses`; the first ones of it no counts. Version 1 was written before 0.1.0 and is refused. A newer
one is refused, too, and any field that is not known: to ignore it may be to read entries twice, or never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spark_streams.errors import OffsetError
from spark_streams.model.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.model.untyped import Json
from spark_streams.source.entry_range import EntryRange


class Count(NamedTuple):
    """How many entries of a stream were read, of how many that it ever had.

    missed: how much `read` is ahead of what the server says that the group has read, for it
    knows of no loss; shared: others read from the group, so nobody but the server can tell what was read; ahead: the
    group stands above all that the stream has had so far, and what is added below it is none of ours; before: `read`
    is up to where the batch began, and the notes of its tasks tell how many entries they have read (rows_read)."""

    read: int
    added: int
    missed: int = 0
    shared: bool = False
    ahead: bool = False
    before: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Count:
        """Raises KeyError, TypeError, ValueError for anything that `to_json` did not write."""
        return cls(
            int(value["read"]),
            int(value["added"]),
            int(value.get("missed", 0)),
            bool(value.get("shared", False)),
            bool(value.get("ahead", False)),
            bool(value.get("before", False)),
        )

    def to_json(self) -> dict[str, object]:
        """The flags and `missed` only if there is something to say."""
        read, added, *others = self
        told: dict[str, object] = {"read": read, "added": added}
        if any(others):
            told |= {name: value for name, value in zip(Count._fields[2:], others, strict=True) if value}
        return told


VERSION = 3
_OLDEST = 2  # that is read
_FIELDS = {
    "an offset": {
        *("version", "group", "consumer", "token", "streams", "batch", "claimed", "counts", "losses", "notes", "noAck"),
        "report",  # spark.batch_starts adds it on a Spark before 4.2
    },
    "batch": {"count", "owned", "after", "begun"},
    "claimed": {"consumer", "count"},
    "counts": {*Count._fields},
}


@dataclass(frozen=True)
class Share:
    """What a batch took from one stream, above `after`.

    owned: these are all entries that the stream held there; begun: where the batch before ended, if that is not `after`
    (others have read what lies between).
    """

    count: int
    owned: bool
    after: StreamId
    begun: StreamId | None = None

    def to_json(self) -> dict[str, object]:
        """`begun` only if there is one."""
        told = {"count": self.count, "owned": self.owned, "after": str(self.after)}
        return told if self.begun is None else {**told, "begun": str(self.begun)}


@dataclass(frozen=True)
class Claimed:
    """Entries of one stream that were taken over from other consumers: they are pending for this consumer."""

    consumer: str
    count: int


@dataclass(frozen=True)
class Offset:
    """group, consumer: whose pending list; positions: per stream; shares, claimed: per stream that the batch took
    from; token: the batch's name; no_ack: it is read without a pending list, and the group is a bookmark, which may
    stand elsewhere;
    notes: the driver has opened the notes of the streams that it took from (task_notes);
    counts: per stream what is known at its position; lost: per stream, how many entries were counted as lost since the
    checkpoint began."""

    group: str
    consumer: str
    positions: Mapping[str, StreamId] = field(default_factory=dict)
    shares: Mapping[str, Share] = field(default_factory=dict)
    claimed: Mapping[str, Sequence[Claimed]] = field(default_factory=dict)
    token: str = ""
    no_ack: bool = False
    counts: Mapping[str, Count] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    notes: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Offset:
        """Raises OffsetError for anything that `to_json` of versions 2 and 3 did not write."""
        if not isinstance(value, Mapping) or type(version := value.get("version")) is not int or version < 1:
            raise OffsetError(
                f"the checkpoint's offset {value!r} was not written by rstream; start the query with the checkpoint "
                "that belongs to it, or with a new checkpoint directory"
            )
        if version < _OLDEST:
            raise OffsetError(
                f"the checkpoint's offset {value!r} has version {version}, which spark-streams before 0.1.0 wrote, and "
                f"this one reads versions {_OLDEST} and {VERSION}. Start the query with the same group and a new "
                "checkpoint directory: it continues after the last acknowledged entry, so the last batch may be "
                "written a second time"
            )
        if version > VERSION:
            raise _newer(f"has version {version}, and this spark-streams reads versions {_OLDEST} to {VERSION}", value)
        try:
            _refuse_unknown_fields(value)
            return cls(
                str(value["group"]),
                str(value["consumer"]),
                {stream: StreamId.parse(text) for stream, text in value["streams"].items()},
                {stream: _share(one) for stream, one in value["batch"].items()},
                {
                    stream: tuple(Claimed(str(one["consumer"]), int(one["count"])) for one in some)
                    for stream, some in value.get("claimed", {}).items()
                },
                str(value.get("token", "")),
                bool(value.get("noAck", False)),
                {stream: Count.from_json(one) for stream, one in value.get("counts", {}).items()},
                {stream: int(count) for stream, count in value.get("losses", {}).items()},
                bool(value.get("notes", False)),
            )
        except (KeyError, AttributeError, TypeError, ValueError, InvalidStreamId) as error:
            raise OffsetError(f"the checkpoint's offset {value!r} cannot be read: {error}") from None

    def to_json(self) -> dict[str, object]:
        """The form above."""
        told = {
            "version": VERSION,
            "group": self.group,
            "consumer": self.consumer,
            "token": self.token,
            "streams": {stream: str(at) for stream, at in sorted(self.positions.items())},
            "batch": {stream: one.to_json() for stream, one in sorted(self.shares.items())},
            "claimed": {
                stream: [{"consumer": one.consumer, "count": one.count} for one in some]
                for stream, some in sorted(self.claimed.items())
            },
        }
        if self.counts:
            told["counts"] = {stream: one.to_json() for stream, one in sorted(self.counts.items())}
        if self.lost:
            told["losses"] = dict(sorted(self.lost.items()))
        if self.notes:
            told["notes"] = True
        return {**told, "noAck": True} if self.no_ack else told

    def __getitem__(self, stream: str) -> StreamId:
        """Where the stream stands; 0-0 where it is not named."""
        return self.positions.get(stream, MIN_ID)

    @property
    def streams(self) -> list[str]:
        """All that it speaks of. A batch may have claims on a stream that the query has read nothing of yet."""
        return sorted({*self.positions, *self.claimed})

    @property
    def taken_from(self) -> list[str]:
        """The streams that the batch which ends here has entries of."""
        return sorted({*self.shares, *self.claimed})

    @property
    def held(self) -> int:
        """How many entries the batch that ends here was given."""
        claimed = sum(one.count for some in self.claimed.values() for one in some)
        return claimed + sum(share.count for share in self.shares.values())

    def after(
        self, ranges: Iterable[EntryRange], token: str = "", claimed: Mapping[str, Sequence[Claimed]] | None = None
    ) -> Offset:
        """The offset at the end of a batch that begins here, of these ranges (a stream's in order) and claims."""
        positions, shares = dict(self.positions), dict[str, Share]()
        for entries in ranges:
            before = shares.get(entries.stream)
            if before is None:
                begun = self[entries.stream]
                share = Share(entries.count, entries.owned, entries.after, begun if begun != entries.after else None)
            else:
                unbroken = positions[entries.stream] == entries.after
                owned = before.owned and entries.owned and unbroken
                share = replace(before, count=before.count + entries.count, owned=owned)
            shares[entries.stream] = share
            positions[entries.stream] = entries.last
        kept = {stream: tuple(some) for stream, some in (claimed or {}).items()}
        return Offset(self.group, self.consumer, positions, shares, kept, token, counts=self.counts, lost=self.lost)

    def with_lost(self, lost: Mapping[str, int]) -> Offset:
        """The same, with so many more entries lost."""
        return replace(self, lost=dict(Counter(self.lost) + Counter(lost)))

    def at(self, stream: str, position: StreamId) -> Offset:
        """The same, but for where one stream stands."""
        return replace(self.without([stream]), positions={**self.positions, stream: position})

    def without(self, streams: Iterable[str]) -> Offset:
        """The same without these streams."""
        gone = set(streams)
        return replace(
            self,
            positions={stream: at for stream, at in self.positions.items() if stream not in gone},
            shares={stream: share for stream, share in self.shares.items() if stream not in gone},
            claimed={stream: some for stream, some in self.claimed.items() if stream not in gone},
            counts={stream: one for stream, one in self.counts.items() if stream not in gone},
        )

    def covers(self, other: Offset) -> bool:
        """Whether the other one is this one, or what is left of it `without` some streams."""
        return self.token == other.token and self.positions.items() >= other.positions.items()


def _refuse_unknown_fields(value: Mapping[str, Json]) -> None:
    """Raises OffsetError if a newer version has written something that this one would pass over."""
    parts: list[tuple[str, Mapping[str, Json]]] = [("an offset", value)]
    for name in ("batch", "counts"):
        parts += [(name, one) for one in value.get(name, {}).values()]
    parts += [("claimed", one) for some in value.get("claimed", {}).values() for one in some]
    for name, part in parts:
        unknown = sorted(map(str, part.keys() - _FIELDS[name]))
        if unknown:
            raise _newer(f"has fields that this spark-streams does not know ({', '.join(unknown)} in {name})", value)


def _newer(problem: str, value: Mapping[str, Json]) -> OffsetError:
    return OffsetError(
        f"the checkpoint's offset {problem}: a newer spark-streams has written it. Install a spark-streams at least as "
        f"new as the one that ran this query last, on the driver and on the executors. The offset: {dict(value)!r}"
    )


def _share(value: Mapping[str, Json]) -> Share:
    begun = value.get("begun")
    after = StreamId.parse(value["after"])
    return Share(int(value["count"]), bool(value["owned"]), after, None if begun is None else StreamId.parse(begun))
