"""The commit marks of a query: up to which entry of each stream its batches are committed (retention.commit_mark).

The mark says what neither checkpoint nor group does:

- a checkpoint that stands below it is an older copy, or has lost its last files;
- what is pending for our consumer above it was delivered to us, and what is pending up to it was handed to us by
  another client (XCLAIM, XAUTOCLAIM): a server that comes back from an older state has both as they were together;
- if it `holds` entries, the query acknowledges them before they are processed (at-most-once): `onCommit` and
  `trim=acked` leave them alone;
- with `noAck` the query has no pending list: nothing can be handed to it.

A query that has no checkpoint yet leaves none, unless it `holds`: where it begins, this run knows. It lowers one that
an earlier checkpoint has left above that.

It is written after what it speaks of is acknowledged, so it may be too low after a crash, and never too high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.ids import MIN_ID, StreamId
from spark_streams.retention.commit_mark import Mark, committed_key
from spark_streams.wire.server import Server


@dataclass(frozen=True)
class _InFlight:
    """The batch that is acknowledged before it is read: arguments of `Marks.give`."""

    token: str = ""
    ends: Mapping[str, StreamId] = field(default_factory=dict)
    lowest: Mapping[str, StreamId] = field(default_factory=dict)

    def hold(self, stream: str, mark: Mark) -> Mark:
        """The mark of an earlier batch, such that it holds this one, too."""
        if stream not in self.ends and stream not in self.lowest:
            return mark
        above = min(mark.up_to, self.lowest[stream].previous()) if stream in self.lowest else mark.up_to
        return replace(mark, held_above=above, given=self.ends.get(stream))


class Marks:
    """The marks of one query; `of`: per stream, as the server has them. no_ack, at_most_once: how this run reads."""

    def __init__(self, group: str, consumer: str, no_ack: bool, at_most_once: bool) -> None:
        self._group, self._consumer, self._no_ack = group, consumer, no_ack
        self._holds = at_most_once
        self.of: dict[str, Mark] = {}
        self._begun: dict[str, StreamId] = {}  # where it begins, while there is no checkpoint
        self._in_flight = _InFlight()

    def begin(self, server: Server, positions: Mapping[str, StreamId]) -> None:
        """The query begins here, and nothing is committed yet."""
        if self._holds or self._no_ack:
            self.write(server, positions)
        else:
            self._begun.update(positions)
            self._lower(server, positions)

    def _lower(self, server: Server, positions: Mapping[str, StreamId]) -> None:
        """Somebody has set these groups back for a new checkpoint: what an earlier one had committed above where it
        begins would make it look like an older copy."""
        streams = list(positions)
        replies = server.execute_all(
            [("GET", committed_key(stream, self._group, self._consumer)) for stream in streams]
        )
        marks = {stream: Mark.parse(reply) for stream, reply in zip(streams, replies, strict=True)}
        above = [stream for stream, mark in marks.items() if mark is not None and mark.up_to > positions[stream]]
        server.execute_all([
            ("SET", committed_key(stream, self._group, self._consumer), str(Mark(positions[stream])))
            for stream in above
        ])  # fmt: skip

    def hold(self, server: Server, streams: Sequence[str]) -> None:
        """Streams that the checkpoint does not name, before any of their entries are reserved: nothing of them is
        committed. Where this query holds entries back, it says so."""
        if self._holds:
            self.write(server, {stream: MIN_ID for stream in streams if stream not in self.of})

    def read(self, server: Server, streams: Sequence[str]) -> None:
        """Ask for those that are not known yet, in one round trip."""
        new = [stream for stream in streams if stream not in self.of]
        replies = server.execute_all([("GET", committed_key(stream, self._group, self._consumer)) for stream in new])
        marks = {stream: Mark.parse(reply) for stream, reply in zip(new, replies, strict=True)}
        self.of |= {stream: mark for stream, mark in marks.items() if mark is not None}

    def are_there(self, server: Server) -> bool:
        """Whether the server has them as we have written or read them."""
        streams = list(self.of)
        replies = server.execute_all(
            [("GET", committed_key(stream, self._group, self._consumer)) for stream in streams]
        )
        return [Mark.parse(reply) for reply in replies] == [self.of[stream] for stream in streams]

    def write(self, server: Server, positions: Mapping[str, StreamId], token: str = "") -> None:
        """All up to these entries is committed, and acknowledged as far as it is to be. token: of their batch."""
        if token and token == self._in_flight.token:
            self._in_flight = _InFlight()
        marks = {stream: self._in_flight.hold(stream, self._mark(position)) for stream, position in positions.items()}
        self._set(server, {stream: mark for stream, mark in marks.items() if self._is_new(mark, self.of.get(stream))})

    def give(self, server: Server, token: str, ends: Mapping[str, StreamId], lowest: Mapping[str, StreamId]) -> None:
        """Hold a batch until it is committed, before it is acknowledged unread (at-most-once).

        token: of the batch; ends: its last entry; lowest: first entry that was handed to the query; both per stream.
        """
        self._in_flight = _InFlight(token, ends, lowest)
        marks = {stream: self.of.get(stream) or self._mark(MIN_ID) for stream in {*ends, *lowest}}
        self._set(server, {stream: self._in_flight.hold(stream, mark) for stream, mark in marks.items()})

    def _mark(self, position: StreamId) -> Mark:
        return Mark(position, position if self._holds else None, no_ack=self._no_ack)

    def _set(self, server: Server, new: Mapping[str, Mark]) -> None:
        server.execute_all([
            ("SET", committed_key(stream, self._group, self._consumer), str(mark)) for stream, mark in new.items()
        ])  # fmt: skip
        self.of |= new

    def _is_new(self, mark: Mark, known: Mark | None) -> bool:
        """A checkpoint that was set back says less than the mark does, of streams that it reads no more."""
        is_exact = mark.holds or mark.no_ack
        return known is None or (mark != known if is_exact or known.holds or known.no_ack else mark.up_to > known.up_to)

    def drop(self, server: Server, streams: Sequence[str]) -> None:
        """These groups are set to where the checkpoint stands: the marks speak of something else."""
        server.execute_all([("DEL", committed_key(stream, self._group, self._consumer)) for stream in streams])
        for stream in streams:
            self.of.pop(stream, None)

    def forget(self) -> None:
        """Take nothing for known: the server is asked again."""
        self.of, self._begun = {}, {}

    def given(self, stream: str) -> StreamId:
        """Up to where entries may be acknowledged and were not read (at-most-once); 0-0 if none are."""
        mark = self.of.get(stream)
        return MIN_ID if mark is None or mark.given is None else mark.given

    def floor(self, stream: str) -> StreamId:
        """Up to where entries that are pending for us were handed over by another client."""
        mark, begun = self.of.get(stream), self._begun.get(stream, MIN_ID)
        return begun if mark is None else max(mark.up_to, begun)
