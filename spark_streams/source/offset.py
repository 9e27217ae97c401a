"""Offset that Spark keeps in its log: the end of a batch in each stream, and the number of its entries.

A batch is (start, end]. The server holds its entries in the pending list of our consumer. The offset has the consumer's
name and the number of entries that its list must hold, so that a replay after a crash is the same batch or an error,
never a smaller batch (FACTS S5, S6).

    {"format": 1, "group": "billing", "consumer": "spark",
     "token": "5f1c9a0be37d",                                       name of the batch, "" if there was none yet
     "streams": {"orders": "1700000000000-0"},                      the query's position in each stream
     "batch": {"orders": "1000 1690000000000-0"},                   entries of the batch that ends here, above this ID
     "claimed": {"orders": [{"consumer": "spark~claim~5f1c9a0be37d", "count": 3}]},   entries claimed from others
     "counts": {"orders": "5000 9000"},                             entries ever added: up to the query's
                                                                    position, and in total
     "losses": {"orders": 2},                                       entries counted as lost since the first batch
     "notes": true,                                                 only if its tasks may write dead letters
     "noAck": true}                                                 only if it was read without a pending list

Spark writes the offset, and passes it as JSON with each call. So there is one string per stream, not one object: it is
written and parsed in a third of the time. Words follow the numbers if they apply: `shared`, `begun=ID` (Share), and
`missed=N`, `shared`, `ahead` (Count).

Losses are detected by `counts` (findings.account). It has `shared` if other consumers read from the group. If an offset
differs from the previous one only in `losses`, `counts` or `streams`,
its batch is empty: it makes the checkpoint remember a loss that was counted (failOnDataLoss=false).

Offsets of unreleased versions, which have a `version`, are refused. So are newer formats and unknown fields: to ignore
them could mean to read entries twice, or never.
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
    """How many entries of a stream were read, and how many were ever added to it.

    missed: how much `read` exceeds the group's own counter, which does not count lost entries. shared: other consumers
    read from the group, so only the server knows what was read. ahead: the group's position is above all entries of the
    stream so far; entries added below it are not ours."""

    read: int
    added: int
    missed: int = 0
    shared: bool = False
    ahead: bool = False

    @classmethod
    def from_json(cls, value: Json) -> Count:
        """Parse a count. Raises KeyError, TypeError, ValueError for anything that no version has written."""
        read, added, *words = value.split(" ")
        missed = next((word.removeprefix(_MISSED) for word in words if word.startswith(_MISSED)), "0")
        flags = {flag: flag in words for flag in cls._fields[3:]} if words else {}
        return cls(int(read), int(added), int(missed), **flags)

    def to_json(self) -> str:
        """Return the JSON form; `missed` and the flags only if they are set."""
        read, added, missed, *flags = self
        count = f"{read} {added}"
        if missed or any(flags):
            words = [name for name, is_set in zip(Count._fields[3:], flags, strict=True) if is_set]
            count = " ".join([count, *([f"{_MISSED}{missed}"] if missed else []), *words])
        return count


FORMAT = 1
HISTORY = "history"  # in an offset while the archive is read (source.archive.history)
_MISSED, _SHARED, _BEGUN = "missed=", "shared", "begun="  # words of a count or share
_FIELDS = {
    "an offset": {
        *("format", "group", "consumer", "token", "streams", "batch", "claimed", "counts", "losses", "notes", "noAck"),
        "report",  # spark.batch_starts adds it on a Spark before 4.2
    },
    "claimed": {"consumer", "count"},
}
# Words of a share and of a count, without their values.
_WORDS = {"batch": {_SHARED, _BEGUN}, "counts": {_MISSED, *Count._fields[3:]}}


@dataclass(frozen=True)
class Share:
    """Entries that a batch has of one stream, above `after`.

    owned: the stream held no other entries there; begun: end of the previous batch, if that is not `after` (other
    consumers have read the entries between).
    """

    count: int
    owned: bool
    after: StreamId
    begun: StreamId | None = None

    @classmethod
    def from_json(cls, value: Json) -> Share:
        """Parse a share. Raises KeyError, TypeError, ValueError, InvalidStreamId for anything that no version has
        written."""
        count, after, *words = value.split(" ")
        begun = next((word.removeprefix(_BEGUN) for word in words if word.startswith(_BEGUN)), None)
        begun_id = None if begun is None else StreamId.parse(begun)
        return cls(int(count), _SHARED not in words, StreamId.parse(after), begun_id)

    def to_json(self) -> str:
        """Return the JSON form."""
        shared = "" if self.owned else f" {_SHARED}"
        begun = "" if self.begun is None else f" {_BEGUN}{self.begun}"
        return f"{self.count} {self.after}{shared}{begun}"


@dataclass(frozen=True)
class Claimed:
    """Entries of one stream that were claimed from other consumers: they are pending for this consumer."""

    consumer: str
    count: int


@dataclass(frozen=True)
class Offset:
    """Position of a query in its streams, and the batch that ends there.

    group, consumer: owner of the pending list; positions: per stream; shares, claimed: entries of the batch, per
    stream; token: name of the batch; no_ack: the batch is read without a pending list, and the group is a bookmark,
    whose position may differ; counts: per stream, at its position; lost: entries per stream that were counted as lost
    since the checkpoint began; notes: the driver has opened the notes of the batch's streams (task_notes)."""

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
        """Parse an offset. Raises OffsetError for anything that `to_json` did not write."""
        if isinstance(value, Mapping) and "version" in value and "format" not in value:
            raise OffsetError(
                f"an unreleased spark-streams has written the checkpoint's offset {value!r}. Start the query with the "
                "same group and a new checkpoint directory: it continues after the last acknowledged entry, so the "
                "last batch may be written a second time"
            )
        if not isinstance(value, Mapping) or type(number := value.get("format")) is not int or number < 1:
            raise OffsetError(
                f"the checkpoint's offset {value!r} was not written by rstream. Start the query with its own "
                "checkpoint directory, or with a new one"
            )
        if number > FORMAT:
            raise _newer(f"has format {number}, and this spark-streams reads format {FORMAT}", value)
        try:
            _refuse_unknown_fields(value)
            return cls(
                str(value["group"]),
                str(value["consumer"]),
                {stream: StreamId.parse(text) for stream, text in value["streams"].items()},
                {stream: Share.from_json(share) for stream, share in value["batch"].items()},
                {
                    stream: tuple(Claimed(str(claim["consumer"]), int(claim["count"])) for claim in claims)
                    for stream, claims in value.get("claimed", {}).items()
                },
                str(value.get("token", "")),
                bool(value.get("noAck", False)),
                {stream: Count.from_json(count) for stream, count in value.get("counts", {}).items()},
                {stream: int(count) for stream, count in value.get("losses", {}).items()},
                bool(value.get("notes", False)),
            )
        except (KeyError, AttributeError, TypeError, ValueError, InvalidStreamId) as error:
            raise OffsetError(f"the checkpoint's offset {value!r} cannot be read: {error}") from None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form, as drawn above."""
        offset = {
            "format": FORMAT,
            "group": self.group,
            "consumer": self.consumer,
            "token": self.token,
            "streams": {stream: str(position) for stream, position in sorted(self.positions.items())},
            "batch": {stream: share.to_json() for stream, share in sorted(self.shares.items())},
            "claimed": {
                stream: [{"consumer": claim.consumer, "count": claim.count} for claim in claims]
                for stream, claims in sorted(self.claimed.items())
            },
        }
        if self.counts:
            offset["counts"] = {stream: count.to_json() for stream, count in sorted(self.counts.items())}
        if self.lost:
            offset["losses"] = dict(sorted(self.lost.items()))
        if self.notes:
            offset["notes"] = True
        return {**offset, "noAck": True} if self.no_ack else offset

    def __getitem__(self, stream: str) -> StreamId:
        """Return the position in a stream; 0-0 if the offset does not name it."""
        return self.positions.get(stream, MIN_ID)

    @property
    def streams(self) -> list[str]:
        """All streams of the offset. A batch may have claims on a stream of which the query has read no entry yet."""
        return sorted({*self.positions, *self.claimed})

    @property
    def taken_from(self) -> list[str]:
        """Streams of which the batch that ends here has entries."""
        return sorted({*self.shares, *self.claimed})

    @property
    def held(self) -> int:
        """How many entries the batch that ends here has."""
        claimed = sum(claim.count for claims in self.claimed.values() for claim in claims)
        return claimed + sum(share.count for share in self.shares.values())

    def after(
        self, ranges: Iterable[EntryRange], token: str = "", claimed: Mapping[str, Sequence[Claimed]] | None = None
    ) -> Offset:
        """Return the offset at the end of a batch that begins here, with these ranges (in order per stream) and
        claims."""
        positions, shares = dict(self.positions), dict[str, Share]()
        for entries in ranges:
            previous = shares.get(entries.stream)
            if previous is None:
                begun = self[entries.stream]
                share = Share(entries.count, entries.owned, entries.after, begun if begun != entries.after else None)
            else:
                is_touching = positions[entries.stream] == entries.after
                owned = previous.owned and entries.owned and is_touching
                share = replace(previous, count=previous.count + entries.count, owned=owned)
            shares[entries.stream] = share
            positions[entries.stream] = entries.last
        claims = {stream: tuple(stream_claims) for stream, stream_claims in (claimed or {}).items()}
        return Offset(self.group, self.consumer, positions, shares, claims, token, counts=self.counts, lost=self.lost)

    def with_lost(self, lost: Mapping[str, int]) -> Offset:
        """Return this offset with these entries added to the lost ones."""
        return replace(self, lost=dict(Counter(self.lost) + Counter(lost)))

    def with_position(self, stream: str, position: StreamId) -> Offset:
        """Return this offset with another position in one stream, of which the batch has no entry."""
        return replace(self.without([stream]), positions={**self.positions, stream: position})

    def without(self, streams: Iterable[str]) -> Offset:
        """Return this offset without these streams; `lost` keeps them."""
        removed = set(streams)
        return replace(
            self,
            positions={stream: position for stream, position in self.positions.items() if stream not in removed},
            shares={stream: share for stream, share in self.shares.items() if stream not in removed},
            claimed={stream: claims for stream, claims in self.claimed.items() if stream not in removed},
            counts={stream: count for stream, count in self.counts.items() if stream not in removed},
        )

    def covers(self, other: Offset) -> bool:
        """Whether `other` is this offset, or this offset `without` some streams."""
        return self.token == other.token and self.positions.items() >= other.positions.items()


def _refuse_unknown_fields(value: Mapping[str, Json]) -> None:
    """Raise OffsetError if a newer version has written a field that this version would ignore."""
    if HISTORY in value:
        raise OffsetError(
            "the query has not read its archive to the end. Set option archivePath again, with the same path. The "
            f"offset: {dict(value)!r}"
        )
    parts: list[tuple[str, Iterable[str], set[str]]] = [("an offset", value, _FIELDS["an offset"])]
    for name, words in _WORDS.items():
        for part in value.get(name, {}).values():
            if part.count(" ") > 1:
                parts.append((name, [_without_value(word) for word in part.split(" ")[2:]], words))
    claims = [claim for stream_claims in value.get("claimed", {}).values() for claim in stream_claims]
    parts += [("claimed", claim, _FIELDS["claimed"]) for claim in claims]
    for name, names, allowed in parts:
        unknown = sorted(map(str, {*names} - allowed))
        if unknown:
            raise _newer(f"has fields that this spark-streams does not know ({', '.join(unknown)} in {name})", value)


def _newer(problem: str, value: Mapping[str, Json]) -> OffsetError:
    return OffsetError(
        f"the checkpoint's offset {problem}. A newer spark-streams has written it. Install a spark-streams at least as "
        f"new as the one that ran this query last, on the driver and on the executors. The offset: {dict(value)!r}"
    )


def _without_value(word: str) -> str:
    name, equals, _ = word.partition("=")
    return name + equals
