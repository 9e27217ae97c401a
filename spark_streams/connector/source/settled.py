"""Up to where the streams of a checkpoint are settled: committed, acknowledged, and marked on the server.

The checkpoint says it for every stream that it ever read, the commit marks say it beside each stream, and a run knows
what it has acknowledged last. `Settled` holds the checkpoint beside the marks of exactly its streams. So a stream that
is not in it is a mistake, and never an answer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.offset import Offset, Range, StreamOffset, around


class Standing(NamedTuple):
    """How the checkpoint and the commit mark of one stream stand to each other."""

    at: StreamOffset  # the stream's last batch in the checkpoint
    mark: Mark | None  # None: there is none

    @property
    def is_older(self) -> bool:
        """Whether the mark knows a batch that the checkpoint does not have: that is an older copy."""
        at, mark = self
        if mark is None or mark.is_seek or self.is_known:
            return False
        return mark.number > at.number or mark.number == at.number > 0

    @property
    def open_batches(self) -> int:
        """How many batches of the stream the mark does not know yet, or no longer."""
        return self.at.number - (0 if self.mark is None else self.mark.number)

    @property
    def is_open(self) -> bool:
        """Whether the mark does not know the stream's last batch: it is behind or missing."""
        return self.open_batches > 0

    @property
    def is_behind(self) -> bool:
        """Whether the mark is of an earlier batch: the server may have returned to before the last one."""
        return self.mark is not None and self.is_open

    @property
    def is_lost(self) -> bool:
        """Whether the mark is missing: the query has one before its first batch, and with noAck needs none."""
        return self.mark is None and self.is_open and self.at.mark.has_pending_list

    @property
    def is_known(self) -> bool:
        """Whether the mark proves that the last batch is acknowledged, also if the group was moved since: then its
        number may be higher, as that of the seek was. Batches without a pending list share a token: a later one of them
        ends above."""
        at, mark = self
        if mark is None or mark.token != at.token:
            return False
        is_moved = mark.number > at.number and mark.id <= at.position
        return mark.number == at.number or mark.has_pending_list or is_moved

    @property
    def shows_move(self) -> bool:
        """Whether an operator has moved the group, or a run that has acknowledged the last batch."""
        at, mark = self
        if mark is None or mark.id == at.position:
            return False
        return mark.is_seek or self.is_known or mark.number == at.number == 0


@dataclass(frozen=True)
class Settled:
    """A checkpoint beside the commit marks of exactly its streams."""

    checkpoint: Offset
    marks: Mapping[str, Mark | None]
    # by a run that has acknowledged nothing yet: what it finds open may be anything that an earlier run, or a server
    # that was restored, has left
    is_first: bool = True
    without_group: frozenset[str] = frozenset()  # streams whose group is missing

    def __post_init__(self) -> None:
        if self.marks.keys() != self.checkpoint.at.keys():
            raise ValueError(f"marks of {sorted(self.marks)} beside a checkpoint of {self.checkpoint.streams}")

    @classmethod
    def left_by_run(cls, acknowledged: Offset, checkpoint: Offset) -> Self:
        """Return what a run has left. acknowledged: its last offset that is acknowledged. The run itself has written
        the marks of positions that it has corrected since."""
        marks: dict[str, Mark | None] = {}
        for stream, at in checkpoint.at.items():
            left = acknowledged.at.get(stream)
            is_corrected = left is not None and (left.number, left.token) == (at.number, at.token)
            marks[stream] = at.mark if is_corrected else None if left is None else left.mark
        return cls(checkpoint, marks, is_first=False)

    def with_marks(self, marks: Mapping[str, Mark | None]) -> Self:
        """Return the same with marks that were seen since."""
        return replace(self, marks={**self.marks, **marks})

    def without(self, streams: Iterable[str]) -> Self:
        """Return the same without the groups of these streams: nothing of theirs can be acknowledged."""
        return replace(self, without_group=frozenset(streams))

    def standing(self, stream: str) -> Standing:
        return Standing(self.checkpoint.at[stream], self.marks[stream])

    def knows(self, streams: Iterable[str]) -> bool:
        """Whether the marks prove that the last batch of each of these streams is acknowledged."""
        return all(self.standing(stream).is_known for stream in streams)

    def open_ranges(self, is_read: bool) -> list[Range]:
        """Return the pending entries that are committed: those of the batch (if it was read), and of the one before if
        they are not acknowledged."""
        start, ranges = self.checkpoint, list[Range]()
        for stream in start.at:
            if self.standing(stream).is_known or not self._is_in_place(stream):
                continue
            batch = start.pending(stream) if is_read else ()
            if self._is_all_committed(stream):
                # A batch that was not read stays pending: better read again than acknowledged unread.
                unread = () if is_read else start.pending(stream)
                ranges += around(stream, [self._acknowledged_below(stream), *unread], start[stream])
            else:
                ranges += [*self._before(stream), *batch]
        return [entries for entries in ranges if not entries.is_empty]

    def marks_to_set(self) -> dict[str, Mark]:
        """Return the marks that are behind the checkpoint, as they are to be. A mark that shows a move stays: the query
        follows it after this, and a kill in between must not hide the move."""
        at = self.checkpoint.at
        open_streams = [stream for stream in at if self.standing(stream).is_open]
        return {stream: at[stream].mark for stream in open_streams if not self.standing(stream).shows_move}

    def in_place(self) -> Offset:
        """Return the checkpoint in the streams whose groups may be set to it."""
        start = self.checkpoint
        return start.without(s for s in start.at if not self._is_in_place(s) or self.standing(s).shows_move)

    def is_earlier(self, stream: str, entry: StreamId) -> bool:
        """Whether an entry is acknowledged with the batch, and is of an earlier one."""
        start = self.checkpoint
        if any(part.covers(entry) for part in start.ranges(stream)):
            return False
        is_before = any(part.covers(entry) for part in self._before(stream))
        return is_before or (self._is_restored(stream) and entry <= start[stream])

    def _is_in_place(self, stream: str) -> bool:
        """Whether the last batch may be acknowledged: the group is there, and no newer copy of the checkpoint has gone
        on from it."""
        return stream not in self.without_group and not self.standing(stream).is_older

    def _before(self, stream: str) -> list[Range]:
        unacknowledged = self.checkpoint.unacknowledged
        return [unacknowledged[stream]] if self.is_first and stream in unacknowledged else []

    def _is_all_committed(self, stream: str) -> bool:
        """Whether all that is pending up to the position was read, and is not acknowledged any more, or not yet. Of a
        batch without a pending list that is what a run before it has left pending on a server of that time."""
        at, mark = standing = self.standing(stream)
        is_left = stream in self.checkpoint.left or (mark is not None and mark.has_replay)
        had_pending_list = at.mark.has_pending_list or (mark is not None and mark.has_pending_list)
        return self.is_first and standing.is_open and not is_left and had_pending_list

    def _acknowledged_below(self, stream: str) -> Range:
        """Return what the mark proves of a stream whose last batch was read without a pending list: that has read all
        above it, and nothing at or below it."""
        at, mark = self.standing(stream)
        return Range(stream, MIN_ID, MIN_ID if mark is None or at.mark.has_pending_list else mark.id)

    def _is_restored(self, stream: str) -> bool:
        """Whether the server has lost acknowledgements: the mark is older than what may not be acknowledged yet."""
        start, standing = self.checkpoint, self.standing(stream)
        unacknowledged = sum([start.is_of_this_batch(stream), stream in start.unacknowledged])
        is_older_yet = standing.is_behind and standing.open_batches > unacknowledged
        return is_older_yet and self._is_all_committed(stream)
