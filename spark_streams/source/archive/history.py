"""What a new query reads from the archive before it reads its streams, and where its batches end.

    archive  ████████████████████ · █ ·      entries that the job `archive` has written
    stream                        █ · █ █    entries that the stream has
             after            border   until

Up to `border` the stream has no entry, so all entries there come from the archive, in batches by ID. Above it a few
entries may be missing (XTRIM … ACKED): they are the last batch. `until` is the last ID that the stream has given after
the query's group was created. From then on no entry that the group needs is trimmed, so the group delivers the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_streams.errors import GroupExistsError, OffsetError
from spark_streams.model.ids import MAX_ID, MIN_ID, InvalidStreamId, StreamId
from spark_streams.model.untyped import Json
from spark_streams.options.per_stream import PerStream
from spark_streams.source.archive.files import Archive
from spark_streams.source.archive.page import id_parts
from spark_streams.source.archive.rows import KEYS, first_row_group, in_order
from spark_streams.source.batch.plan import fetch_heads
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.group_state import GroupState, fetch_state, missing
from spark_streams.source.membership import Membership
from spark_streams.source.quota import BatchQuota
from spark_streams.wire.connection.server import Server


class Bounds(NamedTuple):
    """Bounds of one stream's history, as drawn above."""

    after: StreamId
    border: StreamId
    until: StreamId


@dataclass(frozen=True)
class History:
    """How far a query has read the archive. read: up to this ID of all streams, MAX_ID: everything; bounds: by stream,
    None: the query has not begun."""

    read: StreamId = MIN_ID
    bounds: Mapping[str, Bounds] | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> History:
        """Parse the part `history` of an offset. Raises OffsetError."""
        try:
            if not value:
                return cls()
            bounds = {stream: Bounds(*map(StreamId.parse, ids)) for stream, ids in value["streams"].items()}
            return cls(StreamId.parse(value["read"]), bounds)
        except (KeyError, AttributeError, TypeError, InvalidStreamId) as error:
            raise OffsetError(f"the history {value!r} of the checkpoint's offset cannot be read: {error}") from None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form; empty if the query has not begun."""
        if self.bounds is None:
            return {}
        streams = {stream: [str(entry_id) for entry_id in ids] for stream, ids in sorted(self.bounds.items())}
        return {"read": str(self.read), "streams": streams}

    def trimmed(self, after: StreamId, last: StreamId) -> list[EntryRange]:
        """Return the ranges with after < ID ≤ last of which the streams have no entry."""
        parts = [
            EntryRange(stream, max(after, ids.after), min(last, ids.border), 1, owned=True, counted=False)
            for stream, ids in (self.bounds or {}).items()
        ]
        return [part for part in parts if part.after < part.last]

    def removed(self) -> list[EntryRange]:
        """Return the ranges of which the streams may lack a few entries."""
        parts = [
            EntryRange(stream, max(ids.after, ids.border), ids.until, 1, owned=True, counted=False)
            for stream, ids in (self.bounds or {}).items()
        ]
        return [part for part in parts if part.after < part.last]


def begin_history(server: Server, member: Membership, starting: PerStream[str]) -> History:
    """Return the history of a query whose groups exist now. starting: startingOffsets.

    Raises GroupExistsError if the streams have entries between the start and a group's position: neither the archive
    nor the group would give them to the query. Raises GroupMissingError, ServerError.
    """
    _, groups = fetch_state(server, member, member.streams)
    require_present(server, member, groups)
    positions = {stream: group.last_delivered for stream, group in groups.items() if group is not None}
    starts = {stream: starting.value_for(stream) for stream in positions}
    afters = {stream: StreamId.parse(start) for stream, start in starts.items() if start != "$"}
    passed = [stream for stream, after in afters.items() if after < positions[stream]]
    commands = [
        ("XRANGE", stream, bytes(afters[stream].next()), bytes(positions[stream]), "COUNT", 1) for stream in passed
    ]
    for stream, reply in zip(passed, server.execute_all(commands), strict=True):
        if reply:
            raise GroupExistsError(
                f"group {member.group!r} of stream {stream!r} exists and has passed entry {reply[0][0].decode()}, "
                "which the stream still has. A query with archivePath and without a checkpoint reads from "
                "startingOffsets on. Start it with its checkpoint, set onNewCheckpoint=restart, or give it a group of "
                "its own"
            )
    heads = fetch_heads(server, list(afters), must_exist=False)
    return History(
        MIN_ID,
        {
            stream: Bounds(
                after, heads[stream].generated if (first := heads[stream].first) is None else first.previous(),
                heads[stream].generated,
            )
            for stream, after in afters.items()
        },
    )  # fmt: skip


def require_present(server: Server, member: Membership, groups: Mapping[str, GroupState | None]) -> None:
    """Raise GroupMissingError for the first of these groups that is missing."""
    for stream, group in groups.items():
        if group is None:
            raise missing(server, member, stream, stream_too=False)


def next_history(archive: Archive, history: History, ends: Iterator[StreamId]) -> History | None:
    """Return the history after the next batch; None: all of it is read. ends: of the batches after `read`."""
    end = next(ends, None)
    if end is not None:
        return replace(history, read=end)
    removed = history.removed()
    if history.read == MAX_ID or not removed:
        return None
    has_files = archive.files(min(part.after for part in removed), max(part.last for part in removed))
    return replace(history, read=MAX_ID) if has_files else None


def batch_ends(archive: Archive, ranges: Sequence[EntryRange], quota: BatchQuota) -> Iterator[StreamId]:
    """Yield the last IDs of batches that the quota admits. Entries of several streams are taken in the order of their
    IDs. Raises ArchiveError."""
    last = max((part.last for part in ranges), default=MIN_ID)
    limit = _Limit.from_quota(archive, ranges, quota)
    if limit is None:
        if first_row_group(archive, ranges) is not None:
            yield last
        return
    taken, end = Counter[str](), None
    for keys in in_order(archive, ranges, {}, KEYS):
        streams, (ms, seq) = keys["stream"].cast(pa.string()), id_parts(keys["id"])
        begin = 0
        while begin < keys.num_rows:
            count = limit.fitting(streams[begin:], taken)
            if not count:
                assert end is not None
                yield end
                taken = Counter()
                continue
            taken += Counter(streams[begin : begin + count].to_pylist())
            begin += count
            end = StreamId(int(ms[begin - 1]), int(seq[begin - 1]))
    if end is not None:
        yield last


@dataclass(frozen=True)
class _Limit:
    """How many entries a batch has at most. entries: of all streams; of_stream: by stream."""

    entries: int | None
    quota: BatchQuota = field(repr=False)

    @classmethod
    def from_quota(cls, archive: Archive, ranges: Sequence[EntryRange], quota: BatchQuota) -> _Limit | None:
        """Return the limit; None: there is none. Bytes count by the average size of the first entries."""
        entries = [quota.entries] if quota.entries is not None else []
        if quota.size is not None and (group := first_row_group(archive, ranges)) is not None:
            entries.append(max(1, math.floor(quota.size / group.entry_bytes)))
        if not entries and all(quota.limit_of(part.stream) is None for part in ranges):
            return None
        return cls(min(entries, default=None), quota)

    def fitting(self, streams: pa.Array, taken: Mapping[str, int]) -> int:
        """Return how many of the next entries fit into a batch that has `taken`. streams: of the entries."""
        fitting = len(streams) if self.entries is None else max(0, self.entries - sum(taken.values()))
        encoded = streams.dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False)
        for number, stream in enumerate(encoded.dictionary.to_pylist()):
            limit = self.quota.limit_of(stream)
            if limit is not None:
                places = np.flatnonzero(numbers == number)
                remaining = max(0, limit - taken.get(stream, 0))
                fitting = min(fitting, int(places[remaining]) if remaining < len(places) else len(streams))
        return min(fitting, len(streams))
