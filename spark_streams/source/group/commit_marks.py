"""The commit marks of a query: up to which entry of each stream its batches are committed (model.commit_mark).

The mark says what neither checkpoint nor group does:

- a checkpoint that stands below it is an older copy, or has lost its last files;
- what is pending for our consumer above it was delivered to us, and what is pending up to it was handed to us by
  another client (XCLAIM, XAUTOCLAIM): a server that comes back from an older state has both as they were together;
- if it `holds` entries, the query acknowledges them before they are processed (at-most-once): `onCommit` and
  `trim=acked` leave them alone;
- with `noAck` the query has no pending list: nothing can be handed to it.

A query that has no checkpoint yet leaves one where it begins, before its first offset is logged. It replaces one that
an earlier checkpoint has left. Later ones are written after what they speak of is acknowledged, so a mark may be too
low after a crash, and never too high.
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
class InFlight:
    """The batch that is acknowledged before it is read (at-most-once). token: its name; lowest: per stream, the first
    entry that was handed to the query."""

    token: str = ""
    lowest: Mapping[str, StreamId] = field(default_factory=dict)

    def hold(self, stream: str, mark: Mark) -> Mark:
        """The mark of an earlier batch, such that it holds this one, too."""
        if stream not in self.lowest:
            return mark
        return replace(mark, held_above=min(mark.up_to, self.lowest[stream].previous()))


@dataclass(frozen=True)
class Marks:
    """What a run knows of its marks. of: per stream, as the server has them; in_flight: the batch that they hold."""

    of: Mapping[str, Mark] = field(default_factory=dict)
    in_flight: InFlight = InFlight()

    def floor(self, stream: str) -> StreamId:
        """Up to where entries that are pending for us were handed over by another client."""
        mark = self.of.get(stream)
        return MIN_ID if mark is None else mark.up_to

    def without(self, streams: Sequence[str]) -> Marks:
        """The same, with the marks of these streams deleted."""
        return replace(self, of={stream: mark for stream, mark in self.of.items() if stream not in streams})


class CommitMarks:
    """The marks of one query on the server, and what becomes of them. no_ack, at_most_once: how this run reads."""

    def __init__(self, member: Membership, no_ack: bool, at_most_once: bool) -> None:
        self._member, self._no_ack, self._holds = member, no_ack, at_most_once

    # -- what they are next ------------------------------------------------------------------------------------------

    def begun(self, marks: Marks, positions: Mapping[str, StreamId]) -> Marks:
        """The query begins here, and nothing is committed yet."""
        begun = {stream: replace(self._mark(position), begun=True) for stream, position in positions.items()}
        return replace(marks, of={**marks.of, **{s: marks.in_flight.hold(s, mark) for s, mark in begun.items()}})

    def held(self, marks: Marks, streams: Sequence[str]) -> Marks:
        """Nothing of these streams is committed, which the checkpoint does not name. Where this query holds entries
        back, it says so before any of them are reserved."""
        if not self._holds:
            return marks
        return self.committed(marks, {stream: MIN_ID for stream in streams if stream not in marks.of})

    def committed(self, marks: Marks, positions: Mapping[str, StreamId], token: str = "") -> Marks:
        """All up to these entries is committed, and acknowledged as far as it is to be. token: of their batch."""
        in_flight = InFlight() if token and token == marks.in_flight.token else marks.in_flight
        found = {stream: in_flight.hold(stream, self._mark(position)) for stream, position in positions.items()}
        new = {stream: mark for stream, mark in found.items() if self._is_new(mark, marks.of.get(stream))}
        return replace(marks, of={**marks.of, **new}, in_flight=in_flight)

    def holding(self, marks: Marks, batch: InFlight) -> Marks:
        """The batch is to be held until it is committed."""
        known = {stream: marks.of.get(stream) or self._mark(MIN_ID) for stream in batch.lowest}
        held = {stream: batch.hold(stream, mark) for stream, mark in known.items()}
        return replace(marks, of={**marks.of, **held}, in_flight=batch)

    def _mark(self, position: StreamId) -> Mark:
        return Mark(position, position if self._holds else None, no_ack=self._no_ack)

    def _is_new(self, mark: Mark, known: Mark | None) -> bool:
        """A checkpoint that was set back says less than the mark does, of streams that it reads no more. With noAck the
        checkpoint counts, whichever it is."""
        if known is None or mark.no_ack or known.no_ack:
            return mark != known
        if mark.up_to == known.up_to:
            return mark != known and (mark.holds or known.holds)
        return mark.up_to > known.up_to

    def run_again(self, server: Server, end: Offset) -> None:
        """The batch that ends here is run again, because the commit log has lost it: it is not committed. So what its
        tasks note counts, and what is pending for us within it is of the batch. The mark remembers that the batch was
        committed before. A mark that is above the batch stays. Both show later whether the checkpoint is an older copy.
        With noAck the checkpoint counts, whichever it is."""
        lowered: dict[str, Mark] = {}
        for stream, mark in self._get(server, list(end.shares)).items():
            share = end.shares[stream]
            if mark is None or mark.holds or mark.up_to < end[stream]:
                continue
            if mark.reached == end[stream] or self._no_ack:
                again = None if self._no_ack else mark.reached
                lowered[stream] = replace(mark, up_to=share.begun or share.after, committed_before=again)
        self._set(server, lowered)

    # -- on the server -----------------------------------------------------------------------------------------------

    def read(self, server: Server, marks: Marks, streams: Sequence[str]) -> Marks:
        """Ask for those that are not known yet, in one round trip."""
        found = self._get(server, [stream for stream in streams if stream not in marks.of])
        return replace(marks, of={**marks.of, **{stream: mark for stream, mark in found.items() if mark is not None}})

    def are_there(self, server: Server, marks: Marks) -> bool:
        """Whether the server has them as they are known."""
        return self._get(server, list(marks.of)) == marks.of

    def write(self, server: Server, before: Marks, after: Marks) -> None:
        """Write what has changed."""
        self._set(server, {stream: mark for stream, mark in after.of.items() if mark != before.of.get(stream)})

    def _get(self, server: Server, streams: Sequence[str]) -> dict[str, Mark | None]:
        replies = server.execute_all([("GET", self._key(stream)) for stream in streams])
        return {stream: Mark.parse(reply) for stream, reply in zip(streams, replies, strict=True)}

    def _set(self, server: Server, marks: Mapping[str, Mark]) -> None:
        server.execute_all([("SET", self._key(stream), str(mark)) for stream, mark in marks.items()])

    def _key(self, stream: str) -> bytes:
        return committed_key(stream, self._member.group, self._member.consumer)


def delete_marks(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """These groups are set to where the checkpoint stands: the marks speak of something else."""
    server.execute_all([("DEL", committed_key(stream, member.group, member.consumer)) for stream in streams])
