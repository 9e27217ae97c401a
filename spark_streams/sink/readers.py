"""Who reads some streams: their groups, and what running queries hold back beyond what the groups say.

`rstream:committed:{stream}:<group>:<consumer>` holds the id of an entry up to which that query's batches are committed.
With ` holds` behind it, the entries above it are needed whatever the group says: the query acknowledges them before
they are processed (at-most-once), or lists none (noAck). A key without its consumer in the group does not count: who
was let go (XGROUP DELCONSUMER, DESTROY) holds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_streams.errors import StreamStateError
from spark_streams.ids import InvalidStreamId, StreamId
from spark_streams.keys import key_beside
from spark_streams.wire.connection import Connection, Reply, ReplyError
from spark_streams.wire.replies import pairs
from spark_streams.wire.reply_errors import is_no_group, is_no_such_key

_HOLDS = b" holds"

Group = Mapping[bytes, Any]  # as XINFO GROUPS tells it
_Reader = tuple[bytes, bytes, bytes]  # stream, group, consumer


class Readers:
    """Remembers whom it has met: what is asked of them travels with the next question for the groups, so that looking
    again takes one round trip, as long as nobody is new."""

    def __init__(self, server: Connection) -> None:
        self._server = server
        self._groups: set[tuple[bytes, bytes]] = set()
        self._consumers: set[_Reader] = set()

    def look(self, streams: Sequence[bytes]) -> dict[bytes, tuple[list[Group], StreamId | None]]:
        """Per stream that exists its groups, and the entry above which somebody holds back all; None: nobody does.

        Raises StreamStateError, ServerReplyError.
        """
        wanted = set(streams)
        known = sorted(one for one in self._groups if one[0] in wanted)
        readers = sorted(one for one in self._consumers if one[0] in wanted)
        replies = iter(
            self._server.pipeline([
                *[("XINFO", "GROUPS", stream) for stream in streams],
                *[("XINFO", "CONSUMERS", *group) for group in known],
                *[("GET", key) for key in map(_key, readers)],
            ])
        )  # fmt: skip
        groups = self._read_groups(streams, [next(replies) for _ in streams])
        consumers = self._read_consumers(known, [next(replies) for _ in known])
        marks = dict(zip(readers, replies, strict=True))
        there = {(stream, group[b"name"]) for stream, some in groups.items() for group in some}
        new = sorted(there - set(known))
        consumers |= self._read_consumers(new, self._server.pipeline([("XINFO", "CONSUMERS", *one) for one in new]))
        met = sorted(consumers - set(readers))
        marks |= dict(zip(met, self._server.execute_all([("GET", _key(one)) for one in met]), strict=True))
        self._groups = (self._groups - set(known)) | there
        self._consumers = (self._consumers - set(readers)) | consumers
        held: dict[bytes, StreamId] = {}
        for reader in consumers:
            at = self._held_by(reader, marks[reader])
            if at is not None:
                held[reader[0]] = min(at, held.get(reader[0], at))
        return {stream: (some, held.get(stream)) for stream, some in groups.items()}

    def _read_groups(self, streams: Sequence[bytes], replies: Sequence[Reply]) -> dict[bytes, list[Group]]:
        found: dict[bytes, list[Group]] = {}
        for stream, reply in zip(streams, replies, strict=True):
            if not isinstance(reply, ReplyError):
                found[stream] = [pairs(group) for group in reply]
            elif not is_no_such_key(reply):  # deleted meanwhile
                raise self._server.error_of(reply, ("XINFO", "GROUPS", stream))
        return found

    def _read_consumers(self, groups: Sequence[tuple[bytes, bytes]], replies: Sequence[Reply]) -> set[_Reader]:
        """Those that can be queries of ours: their names are text."""
        found: set[_Reader] = set()
        for group, reply in zip(groups, replies, strict=True):
            if not isinstance(reply, ReplyError):
                readers = [(*group, pairs(one)[b"name"]) for one in reply]
                found |= {one for one in readers if _is_text(one[1]) and _is_text(one[2])}
            elif not is_no_group(reply) and not is_no_such_key(reply):  # let go meanwhile
                raise self._server.error_of(reply, ("XINFO", "CONSUMERS", *group))
        return found

    def _held_by(self, reader: _Reader, mark: Reply) -> StreamId | None:
        if mark is None:
            return None
        if isinstance(mark, ReplyError):
            raise self._server.error_of(mark, ("GET", _key(reader)))
        try:
            at = StreamId.parse(mark.removesuffix(_HOLDS))
        except InvalidStreamId:
            raise StreamStateError(
                f"key {_key(reader).decode('utf-8', 'replace')!r} at {self._server.address} holds {mark[:50]!r}, which "
                "is no position of a query: nothing is trimmed; delete the key if its query is gone"
            ) from None
        return at if mark.endswith(_HOLDS) else None


def last_delivered(group: Group) -> StreamId:
    """A group's position."""
    return StreamId.parse(group[b"last-delivered-id"])


def _key(reader: _Reader) -> bytes:
    stream, group, consumer = reader
    return key_beside(stream, "committed", group.decode(), consumer.decode())


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
