"""Who reads some streams: their groups, and what running queries hold back beyond what the groups say.

`rstream:committed:{stream}:<group>:<consumer>` holds the id of an entry up to which that query's batches are committed.
With ` holds` behind it, the entries above it are needed whatever the group says: the query acknowledges them before
they are processed (at-most-once), or lists none (noAck). A key without its consumer in the group does not count: who
was let go (XGROUP DELCONSUMER, DESTROY) holds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_streams.errors import StreamStateError
from spark_streams.ids import InvalidStreamId, StreamId
from spark_streams.keys import key_beside
from spark_streams.wire.connection import Reply, ReplyError
from spark_streams.wire.reply_errors import is_no_group, is_no_such_key
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import GroupInfo, consumers_in, groups_in

_HOLDS = b" holds"

_Reader = tuple[bytes, bytes, bytes]  # stream, group, consumer


class Readers:
    """Remembers whom it has met: what is asked of them travels with the next question for the groups, so that looking
    again takes one round trip, as long as nobody is new."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._groups: set[tuple[bytes, bytes]] = set()
        self._consumers: set[_Reader] = set()

    def look(self, streams: Sequence[bytes]) -> dict[bytes, tuple[list[GroupInfo], StreamId | None]]:
        """Per stream that exists its groups, and the entry above which somebody holds back all; None: nobody does.

        Raises StreamStateError, ServerReplyError.
        """
        wanted = set(streams)
        known_groups = sorted(group for group in self._groups if group[0] in wanted)
        known_readers = sorted(reader for reader in self._consumers if reader[0] in wanted)
        replies = iter(
            self._server.pipeline([
                *[("XINFO", "GROUPS", stream) for stream in streams],
                *[("XINFO", "CONSUMERS", *group) for group in known_groups],
                *[("GET", key) for key in map(_key, known_readers)],
            ])
        )  # fmt: skip
        groups = self._read_groups(streams, [next(replies) for _ in streams])
        readers = self._read_consumers(known_groups, [next(replies) for _ in known_groups])
        marks = dict(zip(known_readers, replies, strict=True))
        there = {(stream, info.name) for stream, infos in groups.items() for info in infos}
        new = sorted(there - set(known_groups))
        readers |= self._read_consumers(new, self._server.pipeline([("XINFO", "CONSUMERS", *group) for group in new]))
        met = sorted(readers - set(known_readers))
        marks |= dict(zip(met, self._server.execute_all([("GET", _key(reader)) for reader in met]), strict=True))
        self._groups = (self._groups - set(known_groups)) | there
        self._consumers = (self._consumers - set(known_readers)) | readers
        held = self._lowest_held({reader: marks[reader] for reader in readers})
        return {stream: (infos, held.get(stream)) for stream, infos in groups.items()}

    def _read_groups(self, streams: Sequence[bytes], replies: Sequence[Reply]) -> dict[bytes, list[GroupInfo]]:
        groups: dict[bytes, list[GroupInfo]] = {}
        for stream, reply in zip(streams, replies, strict=True):
            if is_no_such_key(reply):  # deleted meanwhile
                continue
            if isinstance(reply, ReplyError):
                raise self._server.error_of(reply, ("XINFO", "GROUPS", stream))
            groups[stream] = groups_in(reply)
        return groups

    def _read_consumers(self, groups: Sequence[tuple[bytes, bytes]], replies: Sequence[Reply]) -> set[_Reader]:
        """Those that can be queries of ours: their names are text."""
        readers: set[_Reader] = set()
        for (stream, group), reply in zip(groups, replies, strict=True):
            if is_no_group(reply) or is_no_such_key(reply):  # let go meanwhile
                continue
            if isinstance(reply, ReplyError):
                raise self._server.error_of(reply, ("XINFO", "CONSUMERS", stream, group))
            if _is_text(group):
                readers |= {(stream, group, info.name) for info in consumers_in(reply) if _is_text(info.name)}
        return readers

    def _lowest_held(self, marks: Mapping[_Reader, Reply]) -> dict[bytes, StreamId]:
        """Per stream the lowest entry above which a reader holds back all. marks: what each has said."""
        lowest: dict[bytes, StreamId] = {}
        for reader, mark in marks.items():
            position = self._held_by(reader, mark)
            if position is not None:
                lowest[reader[0]] = min(position, lowest.get(reader[0], position))
        return lowest

    def _held_by(self, reader: _Reader, mark: Reply) -> StreamId | None:
        if mark is None:
            return None
        if isinstance(mark, ReplyError):
            raise self._server.error_of(mark, ("GET", _key(reader)))
        try:
            position = StreamId.parse(mark.removesuffix(_HOLDS))
        except InvalidStreamId:
            raise StreamStateError(
                f"key {_key(reader).decode('utf-8', 'replace')!r} at {self._server.address} holds {mark[:50]!r}, which "
                "is no position of a query: nothing is trimmed; delete the key if its query is gone"
            ) from None
        return position if mark.endswith(_HOLDS) else None


def _key(reader: _Reader) -> bytes:
    stream, group, consumer = reader
    return key_beside(stream, "committed", group.decode(), consumer.decode())


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
