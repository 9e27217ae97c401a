"""Up to which entry a query's batches are committed and acknowledged: a mark beside each stream.

`rstream:committed:{stream}:<group>:<consumer>` holds an entry id. It says what neither checkpoint nor group does:

- a checkpoint that stands below it is an older copy, or has lost its last files;
- what is pending for our consumer above it was delivered to us, and what is pending up to it was handed to us by
  somebody (XCLAIM, XAUTOCLAIM): a server that comes back from an older state has both as they were together;
- with ` holds` behind the id, the query acknowledges entries before they are processed (at-most-once), or lists none
  (noAck): whoever trims what everybody has acknowledged leaves the entries above it alone.

A query that has no checkpoint yet leaves none, unless it `holds`: where it begins, this run knows. It lowers one that
an earlier checkpoint has left above that.

It is written after what it speaks of is acknowledged, so it may be too low after a crash, and never too high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.keys import key_beside
from spark_streams.wire.server import Server

_HOLDS = " holds"


@dataclass(frozen=True)
class Mark:
    """up_to: all up to this entry is committed; holds: entries above it are needed whatever the group says."""

    up_to: StreamId
    holds: bool

    @classmethod
    def parse(cls, value: bytes | None) -> Mark | None:
        """None where there is none, or one that this version does not know."""
        if value is None:
            return None
        text = value.decode("utf-8", "replace")
        try:
            return cls(StreamId.parse(text.removesuffix(_HOLDS)), text.endswith(_HOLDS))
        except InvalidStreamId:
            return None

    def __str__(self) -> str:
        return f"{self.up_to}{_HOLDS if self.holds else ''}"


def committed_key(stream: str, group: str, consumer: str) -> bytes:
    """The key of one stream's mark."""
    return key_beside(stream, "committed", group, consumer)


class Marks:
    """The marks of one query; `of`: per stream, as the server has them. holds: as in Mark, of this run."""

    def __init__(self, group: str, consumer: str, holds: bool) -> None:
        self._group, self._consumer, self._holds = group, consumer, holds
        self.of: dict[str, Mark] = {}
        self._begun: dict[str, StreamId] = {}  # where it begins, while there is no checkpoint

    def begin(self, server: Server, positions: Mapping[str, StreamId]) -> None:
        """The query begins here, and nothing is committed yet."""
        if self._holds:
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
            ("SET", committed_key(stream, self._group, self._consumer), str(Mark(positions[stream], False)))
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

    def write(self, server: Server, positions: Mapping[str, StreamId]) -> None:
        """All up to these entries is committed, and acknowledged as far as it is to be."""
        marks = {stream: Mark(position, self._holds) for stream, position in positions.items()}
        new = {stream: mark for stream, mark in marks.items() if self._is_new(mark, self.of.get(stream))}
        server.execute_all([
            ("SET", committed_key(stream, self._group, self._consumer), str(mark)) for stream, mark in new.items()
        ])  # fmt: skip
        self.of |= new

    def _is_new(self, mark: Mark, known: Mark | None) -> bool:
        """A checkpoint that was set back says less than the mark does, of streams that it reads no more."""
        return known is None or (mark != known if mark.holds or known.holds else mark.up_to > known.up_to)

    def drop(self, server: Server, streams: Sequence[str]) -> None:
        """These groups are set to where the checkpoint stands: the marks speak of something else."""
        server.execute_all([("DEL", committed_key(stream, self._group, self._consumer)) for stream in streams])
        for stream in streams:
            self.of.pop(stream, None)

    def forget(self) -> None:
        """Take nothing for known: the server is asked again."""
        self.of, self._begun = {}, {}

    def floor(self, stream: str) -> StreamId:
        """What is pending for us up to here, somebody has handed to us."""
        mark = self.of.get(stream)
        return self._begun.get(stream, MIN_ID) if mark is None else mark.up_to
