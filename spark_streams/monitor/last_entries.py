"""The last entries of some streams, and those that come: in the order of their ids, each once. It only looks.

Of streams that come in together an entry waits for none that is still to be written: one with a lower id that is added
to another stream later is printed later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.wire.connection.connection import Argument, Reply, ReplyError
from spark_streams.wire.connection.page_sizer import PageSizer
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_no_such_key
from spark_streams.wire.replies.xinfo import stream_states

# Entries of a round trip, of all streams.
_FIRST, _LARGEST, _BYTES = 10, 1_000, 4 << 20

Name = str | bytes


class Seen(NamedTuple):
    """An entry of a stream. pairs: names and values."""

    id: StreamId
    stream: Name
    pairs: tuple[tuple[bytes, bytes], ...]


def last_entries(server: Server, streams: Sequence[Name], most: int) -> tuple[list[Seen], dict[Name, StreamId]]:
    """The last `most` entries of all these streams together, and where each of them ends, for `Follower`. Raises
    WrongKeyTypeError, ServerError."""
    ends = {stream: head.last for stream, head in stream_states(server, [*streams]).items()}
    commands = [("XREVRANGE", stream, bytes(end), "-", "COUNT", most) for stream, end in ends.items()] if most else []
    kept: list[Seen] = []
    for command, reply in zip(commands, server.execute_each(commands), strict=True):
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command[:2])
        kept = heapq.nlargest(most, [*kept, *_entries(command[1], reply)], key=lambda one: one.id)
    return sorted(kept, key=_order), ends


class Follower:
    """What is added behind these positions, by stream; `positions` moves with what is handed out, so that whoever loses
    the server goes on where it was. at_once: entries of the first round trip; later ones fit their size."""

    def __init__(self, positions: Mapping[Name, StreamId], at_once: int = _FIRST) -> None:
        self.positions = dict(positions)
        self._sizer = PageSizer(at_once, _LARGEST, _BYTES, growth=5)

    def add(self, positions: Mapping[Name, StreamId]) -> None:
        """Follow these, too, where they are new."""
        self.positions = {**positions, **self.positions}

    def step(self, server: Server, wait_ms: int) -> Iterator[Seen]:
        """What there is, in the order of the ids; where nothing is, and all streams stand in one slot, it is waited
        for so long. Raises WrongKeyTypeError, ServerError: what was handed out before is not handed out again."""
        found: list[Seen] = []
        most = max(1, self._sizer.size // max(1, len(self.positions)))
        bound = MAX_ID
        groups = server.together([*self.positions], lambda stream: stream)
        block: list[Argument] = ["BLOCK", wait_ms] if len(groups) == 1 and wait_ms else []
        commands = [
            ("XREAD", "COUNT", most, *block, "STREAMS", *some, *[bytes(self.positions[one]) for one in some])
            for some in groups
        ]
        for reply in server.execute_all(commands):
            for name, entries in reply or ():
                some = list(_entries(self._known(name), entries))
                found += some
                if len(some) >= most:  # it may have more, which come before what others have above that
                    bound = min(bound, some[-1].id)
        if found:
            size = sum(len(name) + len(value) + 16 for one in found for name, value in one.pairs)
            self._sizer.learn(len(found), size)
        for one in sorted(found, key=_order):
            if one.id <= bound:
                self.positions[one.stream] = one.id
                yield one

    def _known(self, name: bytes) -> Name:
        """As whoever asked has named it."""
        return name if name in self.positions else name.decode()


def existing(server: Server, streams: Sequence[Name]) -> list[Name]:
    """Those that there are."""
    replies = server.pipeline([("XINFO", "STREAM", stream) for stream in streams])
    return [stream for stream, reply in zip(streams, replies, strict=True) if not is_no_such_key(reply)]


def _entries(stream: Name, reply: Reply) -> Iterator[Seen]:
    for entry, fields in reply:
        if fields is not None:
            yield Seen(StreamId.parse(entry), stream, tuple(zip(fields[0::2], fields[1::2], strict=True)))


def _order(one: Seen) -> tuple[StreamId, bytes]:
    return one.id, one.stream if isinstance(one.stream, bytes) else one.stream.encode()
