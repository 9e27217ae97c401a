"""What a new query reads from the archive before it reads its streams, and where its batches end.

The streams are asked for the borders (borders.py) after the query's group was created. From then on no entry that the
group needs is trimmed, so the group delivers the entries above `until`. What only the archive has is read in batches by
ID. The few entries that may be missing between those of the stream are the last batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import MAX_ID, MIN_ID, InvalidStreamId, StreamId
from spark_streams.base.pattern import matches
from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ArchiveError, GroupExistsError, OffsetError
from spark_streams.connector.keys import is_product_key
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.archive.borders import Bounds
from spark_streams.connector.source.archive.files import KEYS, ArchiveTable, highest_ids, id_parts
from spark_streams.connector.source.archive.rows import first_row_group, in_order
from spark_streams.connector.source.batch.plan import fetch_heads
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.counting import count_read
from spark_streams.connector.source.group.snapshot import (
    GroupChange,
    GroupState,
    change_groups,
    fetch_marks,
    fetch_state,
    missing,
)
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import StreamState

_PAGE = 1_000  # entries


# -- position ----------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """Place between two archived entries, which are in the order of their IDs, and of their streams if the IDs are
    equal. It is behind the entries up to `id`; at `id` itself only behind those of streams up to `stream`, None: all.
    """

    id: StreamId
    stream: str | None = None

    def last_id_of(self, stream: str) -> StreamId:
        """Return the last ID of a stream that is before the cut."""
        is_before = self.stream is None or stream <= self.stream
        return self.id if is_before or self.id == MIN_ID else self.id.previous()


BEGIN, END = Cut(MIN_ID), Cut(MAX_ID)


@dataclass(frozen=True)
class History:
    """How far a query has read the archive. read: before this cut, END: everything; bounds: by stream, None: the query
    has not begun."""

    read: Cut = BEGIN
    bounds: Mapping[str, Bounds] | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> History:
        """Parse the part `history` of an offset. Raises OffsetError."""
        try:
            if not value:
                return cls()
            bounds = {stream: Bounds(*map(StreamId.parse, ids)) for stream, ids in value["streams"].items()}
            return cls(Cut(StreamId.parse(value["read"]), value.get("stream")), bounds)
        except (KeyError, AttributeError, TypeError, InvalidStreamId) as error:
            raise OffsetError(f"the history {value!r} of the checkpoint's offset cannot be read: {error}") from None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form; empty if the query has not begun."""
        if self.bounds is None:
            return {}
        streams = {stream: bounds.to_json() for stream, bounds in sorted(self.bounds.items())}
        read = {"read": str(self.read.id)} | ({} if self.read.stream is None else {"stream": self.read.stream})
        return {**read, "streams": streams}

    @property
    def joined(self) -> list[str]:
        """The streams that had entries, and so the group, when the query began."""
        return [stream for stream, ids in (self.bounds or {}).items() if ids.until > MIN_ID]

    def trimmed(self, after: Cut, last: Cut) -> list[Range]:
        """Return the ranges between two cuts of which only the archive has entries."""
        return [
            part
            for stream, bounds in (self.bounds or {}).items()
            for part in bounds.trimmed(stream, after.last_id_of(stream), last.last_id_of(stream))
        ]

    def removed(self) -> list[Range]:
        """Return the ranges of which the streams may lack a few entries."""
        return [part for stream, bounds in (self.bounds or {}).items() for part in bounds.removed(stream)]

    def lost(self) -> list[Range]:
        """Return the ranges above the last ID of streams that are behind the archive."""
        return [part for stream, bounds in (self.bounds or {}).items() for part in bounds.lost(stream)]


# -- begin -------------------------------------------------------------------------------------------------------------


def begin_history(
    client: GroupClient, streams: Sequence[str], archive: ArchiveTable, options: SourceOptions, begin: Offset
) -> History:
    """Return the history of a query whose groups exist now on these streams. begin: its first offset.

    Raises GroupExistsError if the streams have entries between the start and a group's position: neither the archive
    nor the group would give them to the query. Raises GroupMissingError, ArchiveError, ServerError.
    """
    server = client.server
    states, groups = fetch_state(client, streams)
    require_present(client, groups)
    starts = {stream: options.starting_offsets.value_for(stream) for stream in groups}
    afters = {stream: StreamId.parse(start) for stream, start in starts.items() if start != "$"}
    _begin_groups(client, begin, afters, states, groups)
    # The archive is read between the two: what it has above the second is not what the stream has given meanwhile.
    heads = fetch_heads(server, list(afters), must_exist=False)
    archived = _archived(archive, options, {stream: head.generated for stream, head in heads.items()})
    heads = fetch_heads(server, list(afters), must_exist=False)
    bounds = {}
    for stream, after in afters.items():
        head = heads[stream]
        bounds[stream] = Bounds(after, head.border, head.generated, archived.get(stream, MIN_ID))
    for stream, after in _archived_only(server, options, archived.keys() - groups.keys()).items():
        bounds[stream] = Bounds(after, MIN_ID, MIN_ID, archived[stream])
    return History(BEGIN, bounds)


def _archived(archive: ArchiveTable, options: SourceOptions, generated: Mapping[str, StreamId]) -> dict[str, StreamId]:
    pattern = options.streams_pattern
    if pattern is None:
        return highest_ids(archive, generated)
    return highest_ids(archive, generated, lambda name: not is_product_key(name) and matches(pattern, name))


def _archived_only(server: Server, options: SourceOptions, streams: Iterable[str]) -> dict[str, StreamId]:
    """Return where to begin on streams that match the pattern, and of which only the archive has entries. The query
    does not read a stream that holds dead letters."""
    starts = {stream: options.starting_offsets.value_for(stream) for stream in sorted(streams)}
    heads = fetch_heads(server, list(starts), must_exist=False)
    return {
        stream: StreamId.parse(start)
        for stream, start in starts.items()
        if start != "$" and heads[stream].first is None
    }


def _begin_groups(
    client: GroupClient,
    begin: Offset,
    afters: Mapping[str, StreamId],
    heads: Mapping[str, StreamState],
    groups: Mapping[str, GroupState | None],
) -> None:
    """Raise GroupExistsError if a group has passed an entry that its stream still has. Otherwise write the marks of a
    query that has committed nothing.

    Such a mark proves that the entries which are pending for the query's consumer were reserved by a run of this query
    that was killed before its first offset was logged: this run reads them."""
    saved = fetch_marks(client, list(afters))
    positions, begun = {}, set[str]()
    for stream, group in groups.items():
        mark = saved.get(stream)
        assert group is not None
        if mark is not None and mark.is_begin and stream in begin.at:
            begun.add(stream)
        positions[stream] = begin[stream] if stream in begun else group.last_delivered
    passed = [stream for stream, after in afters.items() if after < positions[stream]]
    commands = [
        ("XRANGE", stream, bytes(afters[stream].next()), bytes(positions[stream]), "COUNT", 1) for stream in passed
    ]
    for stream, reply in zip(passed, client.server.execute_all(commands), strict=True):
        if reply:
            raise GroupExistsError(
                f"group {client.group!r} of stream {stream!r} exists and has passed entry {reply[0][0].decode()}, "
                "which the stream still has. A query with archivePath and without a checkpoint reads from "
                "startingOffsets on. Start it with its checkpoint, set onNewCheckpoint=restart, or give it a group of "
                "its own"
            )
    marks = {
        stream: Mark.at_begin(position, count_read(client.server, stream, heads[stream], position))
        for stream, position in positions.items()
        if stream not in begun
    }
    joined = {stream: GroupChange(consumer=True, mark=mark) for stream, mark in marks.items()}
    change_groups(client, joined)


def require_present(client: GroupClient, groups: Mapping[str, GroupState | None]) -> None:
    """Raise GroupMissingError for the first of these groups that is missing."""
    for stream, group in groups.items():
        if group is None:
            raise missing(client, stream, stream_too=False)


def require_unread(server: Server, archive: ArchiveTable, history: History) -> None:
    """Raise ArchiveError if a stream that was behind the archive has got an entry whose ID the query has read from the
    archive: it may be the same entry or another one."""
    for part in history.lost():
        first, last = bytes(part.after.next()), bytes(part.last)
        while page := server.execute("XRANGE", part.stream, first, last, "COUNT", _PAGE):
            ids = pa.array([entry[0] for entry in page], pa.binary())
            covered = replace(part, last=StreamId.parse(page[-1][0]))
            for keys in in_order(archive, [replace(covered, after=StreamId.parse(page[0][0]).previous())], {}, KEYS):
                common = keys["id"].filter(pc.is_in(keys["id"].cast(pa.binary()), ids))
                if len(common):
                    raise ArchiveError(
                        f"stream {part.stream!r} got entry {common[0]} after the query began, and the query has read "
                        f"an entry with this ID from the archive at {archive.path!r}. It cannot tell whether both are "
                        "the same. Do not add archived entries to a stream that is behind its archive. Start with a "
                        "new checkpoint and a new group: entries that the stream has then are read from the stream"
                    )
            if covered.last >= part.last:
                break
            first = bytes(covered.last.next())


# -- batches -----------------------------------------------------------------------------------------------------------


def next_history(archive: ArchiveTable, history: History, ends: Iterator[Cut]) -> History | None:
    """Return the history after the next batch; None: all of it is read. ends: of the batches after `read`."""
    end = next(ends, None)
    if end is not None:
        return replace(history, read=end)
    removed = history.removed()
    if history.read == END or not removed:
        return None
    has_files = archive.files(min(part.after for part in removed), max(part.last for part in removed))
    return replace(history, read=END) if has_files else None


def batch_ends(archive: ArchiveTable, ranges: Sequence[Range], quota: BatchQuota) -> Iterator[Cut]:
    """Yield where batches that the quota admits end. Entries of several streams are taken in the order of their IDs,
    and of the streams' names if IDs are equal: no two batches end at the same place. Raises ArchiveError."""
    last = Cut(max((part.last for part in ranges), default=MIN_ID))
    quota = _without_bytes(archive, ranges, quota)
    if all(quota.limit_of(part.stream) is None for part in ranges):
        if first_row_group(archive, ranges) is not None:
            yield last
        return
    remaining, end = quota, None
    for keys in in_order(archive, ranges, {}, KEYS):
        streams, (ms, seq) = keys["stream"].cast(pa.string()), id_parts(keys["id"])
        begin = 0
        while begin < keys.num_rows:
            count = _fitting(streams[begin:], remaining)
            if not count:
                assert end is not None
                yield end
                remaining = quota
                continue
            remaining = remaining.without(Counter(streams[begin : begin + count].to_pylist()))
            begin += count
            end = Cut(StreamId(int(ms[begin - 1]), int(seq[begin - 1])), streams[begin - 1].as_py())
    if end is not None:
        yield last


def _without_bytes(archive: ArchiveTable, ranges: Sequence[Range], quota: BatchQuota) -> BatchQuota:
    """Return the quota with entries in place of bytes: by the average size of the first entries."""
    entries = [] if quota.entries is None else [quota.entries]
    if quota.size is not None and (group := first_row_group(archive, ranges)) is not None:
        entries.append(max(1, math.floor(quota.size / group.entry_bytes)))
    return replace(quota, entries=min(entries, default=None), size=None)


def _fitting(streams: pa.Array, quota: BatchQuota) -> int:
    """Return how many of the next entries the quota admits. streams: of the entries."""
    fitting = len(streams) if quota.entries is None else min(len(streams), quota.entries)
    encoded = streams.dictionary_encode()
    numbers = encoded.indices.to_numpy(zero_copy_only=False)
    for number, stream in enumerate(encoded.dictionary.to_pylist()):
        limit = quota.limit_of(stream)
        if limit is not None:
            places = np.flatnonzero(numbers == number)
            fitting = min(fitting, int(places[limit]) if limit < len(places) else len(streams))
    return fitting
