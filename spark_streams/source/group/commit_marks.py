"""Commit marks of a query: the last entry of each stream that its batches have committed (model.commit_mark).

A mark tells what neither checkpoint nor group does:

- A checkpoint below the mark is an older copy, or has lost its last files.
- Entries that are pending for the query's consumer above the mark were delivered to it. Those up to the mark were
  handed to it by another client (XCLAIM, XAUTOCLAIM). A server that returns to an older state has the mark and the
  pending entries of the same moment.
- With `noAck` the query has no pending list, so no client can hand entries to it.

A query without a checkpoint writes its marks before its first offset is logged, and replaces those of an earlier
checkpoint. Later marks are written after the entries are acknowledged. So after a crash a mark may be too low, but
never too high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.model.commit_mark import Mark, committed_key
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Marks:
    """A run's copy of its marks. by_stream: as the server has them."""

    by_stream: Mapping[str, Mark] = field(default_factory=dict)

    def floor(self, stream: str) -> StreamId:
        """Return the entry up to which pending entries of the query's consumer were handed over by another client."""
        mark = self.by_stream.get(stream)
        return MIN_ID if mark is None else mark.up_to

    def without(self, streams: Sequence[str]) -> Marks:
        """Return the marks without those of these streams."""
        return Marks({stream: mark for stream, mark in self.by_stream.items() if stream not in streams})


class CommitMarks:
    """Computes, reads and writes the marks of one query. no_ack: whether this run reads without a pending list."""

    def __init__(self, member: Membership, no_ack: bool) -> None:
        self._member, self._no_ack = member, no_ack

    # -- the next marks ----------------------------------------------------------------------------------------------

    def mark_begin(self, marks: Marks, positions: Mapping[str, StreamId]) -> Marks:
        """Return the marks of a query that begins at these positions and has committed nothing."""
        first_marks = {stream: replace(self._mark(position), begun=True) for stream, position in positions.items()}
        return Marks({**marks.by_stream, **first_marks})

    def mark_committed(self, marks: Marks, positions: Mapping[str, StreamId]) -> Marks:
        """Return the marks after a batch up to these entries is committed and acknowledged."""
        batch_marks = {stream: self._mark(position) for stream, position in positions.items()}
        new_marks = {
            stream: mark for stream, mark in batch_marks.items() if self._replaces(mark, marks.by_stream.get(stream))
        }
        return Marks({**marks.by_stream, **new_marks})

    def _mark(self, position: StreamId) -> Mark:
        return Mark(position, no_ack=self._no_ack)

    def _replaces(self, mark: Mark, old: Mark | None) -> bool:
        """Whether a mark replaces the old one. With noAck the checkpoint always decides. Otherwise a lower mark does
        not: the checkpoint was set back, on a stream that the query no longer reads."""
        if old is None or mark.no_ack or old.no_ack:
            return mark != old
        return mark.up_to > old.up_to

    def lower_for_replay(self, server: Server, end: Offset) -> None:
        """Lower the marks to the begin of a batch that is run again because the commit log has lost it.

        The batch is not committed then: notes of its tasks count, and entries within it that are pending for the
        query's consumer belong to it. The mark keeps the position that was committed before. A mark above the batch
        stays. Both show later whether the checkpoint is an older copy. With noAck the checkpoint always decides.
        """
        lowered: dict[str, Mark] = {}
        for stream, mark in self._get(server, list(end.shares)).items():
            share = end.shares[stream]
            if mark is None or mark.up_to < end[stream]:
                continue
            if mark.reached == end[stream] or self._no_ack:
                committed_before = None if self._no_ack else mark.reached
                lowered[stream] = replace(mark, up_to=share.begun or share.after, committed_before=committed_before)
        self._set(server, lowered)

    # -- on the server -----------------------------------------------------------------------------------------------

    def read(self, server: Server, marks: Marks, streams: Sequence[str]) -> Marks:
        """Return the marks with those of these streams, fetched in one round trip if they are missing."""
        fetched = self._get(server, [stream for stream in streams if stream not in marks.by_stream])
        existing = {stream: mark for stream, mark in fetched.items() if mark is not None}
        return Marks({**marks.by_stream, **existing})

    def are_current(self, server: Server, marks: Marks) -> bool:
        """Whether the server has the same marks."""
        return self._get(server, list(marks.by_stream)) == marks.by_stream

    def write(self, server: Server, before: Marks, after: Marks) -> None:
        """Write the changed marks."""
        self._set(
            server, {stream: mark for stream, mark in after.by_stream.items() if mark != before.by_stream.get(stream)}
        )

    def _get(self, server: Server, streams: Sequence[str]) -> dict[str, Mark | None]:
        replies = server.execute_all([("GET", self._key(stream)) for stream in streams])
        return {stream: Mark.parse(reply) for stream, reply in zip(streams, replies, strict=True)}

    def _set(self, server: Server, marks: Mapping[str, Mark]) -> None:
        server.execute_all([("SET", self._key(stream), str(mark)) for stream, mark in marks.items()])

    def _key(self, stream: str) -> bytes:
        return committed_key(stream, self._member.group, self._member.consumer)


def delete_marks(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """Delete the marks of these streams: their groups were set to the checkpoint, so the marks no longer apply."""
    server.execute_all([("DEL", committed_key(stream, member.group, member.consumer)) for stream in streams])
