"""Readers of streams: their groups, the entries pending in them, and the entries that running queries hold back.

The commit mark of an at-most-once query may hold entries that its group has acknowledged (commit_mark), because the
query acknowledges entries before it processes them. A mark counts only if its consumer is in the group: a deleted
consumer (XGROUP DELCONSUMER, DESTROY) holds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.errors import StreamStateError
from spark_streams.model.commit_mark import Mark, committed_key
from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.model.operator_commands import delete_consumer_command
from spark_streams.wire.connection.connection import Reply, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_no_group, is_no_such_key
from spark_streams.wire.replies.xinfo import GroupInfo, consumers_in, groups_in

_Group = tuple[bytes, bytes]  # stream, group
_Reader = tuple[bytes, bytes, bytes]  # stream, group, consumer


@dataclass(frozen=True)
class RetentionState:
    """Positions of the readers of one stream. groups: all groups; oldest: the lowest pending entry, None if nothing is
    pending; held: the entry above which a query holds back all entries, None if no query does.

    Groups move forwards, so the state is still safe a moment later. (A group that is created again or set back
    meanwhile may miss entries, as it may after the removal.)"""

    groups: Sequence[GroupInfo]
    oldest: StreamId | None
    held: StreamId | None

    @property
    def delivered(self) -> StreamId:
        """ID below which all entries were delivered to every group, and are held back by no query. Needs a group."""
        delivered = min(_above(group.last_delivered) for group in self.groups)
        return delivered if self.held is None else min(delivered, _above(self.held))

    @property
    def needed(self) -> StreamId:
        """Lowest ID that is undelivered or unacknowledged in a group, or that a query holds back."""
        return self.delivered if self.oldest is None else min(self.delivered, self.oldest)


class Readers:
    """Fetches the readers of streams. It remembers groups and consumers and asks for them together with the next
    request, so that a further fetch takes one round trip if no reader is new."""

    def __init__(self) -> None:
        self._groups: set[_Group] = set()
        self._consumers: set[_Reader] = set()

    def fetch(self, server: Server, streams: Sequence[bytes]) -> dict[bytes, RetentionState]:
        """Return the state of each stream that exists. Raises StreamStateError, ServerReplyError.

        The pending entries of a group are fetched after the group itself: entries that are delivered in between are
        above the position that was read.
        """
        requested = set(streams)
        known_groups = sorted(group for group in self._groups if group[0] in requested)
        known_readers = sorted(reader for reader in self._consumers if reader[0] in requested)
        replies = iter(
            server.pipeline([
                *[("XINFO", "GROUPS", stream) for stream in streams],
                *_questions(known_groups),
                *[("GET", key) for key in map(_key, known_readers)],
            ])
        )  # fmt: skip
        groups = _read_groups(server, streams, [next(replies) for _ in streams])
        readers, oldest = _read_answers(server, known_groups, [next(replies) for _ in _questions(known_groups)])
        marks = dict(zip(known_readers, replies, strict=True))
        present_groups = {(stream, info.name) for stream, infos in groups.items() for info in infos}
        new_groups = sorted(present_groups - set(known_groups))
        readers_of_new, oldest_of_new = _read_answers(server, new_groups, server.pipeline(_questions(new_groups)))
        readers |= readers_of_new
        new_readers = sorted(readers - set(known_readers))
        new_marks = server.execute_all([("GET", _key(reader)) for reader in new_readers])
        marks |= dict(zip(new_readers, new_marks, strict=True))
        self._groups = (self._groups - set(known_groups)) | present_groups
        self._consumers = (self._consumers - set(known_readers)) | readers
        held = _lowest_held(server, {reader: marks[reader] for reader in readers})
        pending = _lowest_of([*oldest, *oldest_of_new])
        return {
            stream: RetentionState(infos, pending.get(stream), held.get(stream)) for stream, infos in groups.items()
        }


def _questions(groups: Sequence[_Group]) -> list[tuple[str | bytes, ...]]:
    """Return the commands for the consumers and the pending entries of each group."""
    return [
        question
        for stream, group in groups
        for question in (("XINFO", "CONSUMERS", stream, group), ("XPENDING", stream, group))
    ]


def _read_groups(server: Server, streams: Sequence[bytes], replies: Sequence[Reply]) -> dict[bytes, list[GroupInfo]]:
    groups: dict[bytes, list[GroupInfo]] = {}
    for stream, reply in zip(streams, replies, strict=True):
        if is_no_such_key(reply):  # deleted in the meantime
            continue
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, ("XINFO", "GROUPS", stream))
        groups[stream] = groups_in(reply)
    return groups


def _read_answers(
    server: Server, groups: Sequence[_Group], replies: Sequence[Reply]
) -> tuple[set[_Reader], list[tuple[bytes, StreamId]]]:
    """Return the consumers that may be queries (their names are text), and each stream's lowest pending entry."""
    readers: set[_Reader] = set()
    oldest: list[tuple[bytes, StreamId]] = []
    for question, reply in zip(_questions(groups), replies, strict=True):
        if is_no_group(reply) or is_no_such_key(reply):  # deleted in the meantime
            continue
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, question)
        stream, group = [word for word in question[-2:] if isinstance(word, bytes)]
        if question[0] == "XPENDING":
            oldest += [(stream, StreamId.parse(reply[1]))] if reply[0] else []
        elif _is_text(group):
            readers |= {(stream, group, info.name) for info in consumers_in(reply) if _is_text(info.name)}
    return readers, oldest


def _lowest_held(server: Server, marks: Mapping[_Reader, Reply]) -> dict[bytes, StreamId]:
    """Return for each stream the lowest entry above which a reader holds back all entries. marks: of each reader."""
    positions = {reader: _held_by(server, reader, mark) for reader, mark in marks.items()}
    return _lowest_of([(reader[0], position) for reader, position in positions.items() if position is not None])


def _lowest_of(ids: Sequence[tuple[bytes, StreamId]]) -> dict[bytes, StreamId]:
    """Return the lowest ID of each stream."""
    lowest: dict[bytes, StreamId] = {}
    for stream, entry_id in ids:
        lowest[stream] = min(entry_id, lowest.get(stream, entry_id))
    return lowest


def _held_by(server: Server, reader: _Reader, mark: Reply) -> StreamId | None:
    if mark is None:
        return None
    if isinstance(mark, ReplyError):
        raise server.error_of(mark, ("GET", _key(reader)))
    parsed = Mark.parse(mark)
    if parsed is None:
        stream, group, consumer = (name.decode("utf-8", "replace") for name in reader)
        raise StreamStateError(
            f"key {_key(reader).decode('utf-8', 'replace')!r} at {server.address} holds {mark[:50]!r}, which is no "
            "commit mark that this version knows: nothing is trimmed. If a newer version wrote it, install that "
            "version here. If the query will not run again, delete its consumer "
            f"({delete_consumer_command(stream, group, consumer)})"
        )
    return parsed.held_above


def _key(reader: _Reader) -> bytes:
    stream, group, consumer = reader
    return committed_key(stream, group.decode(), consumer.decode())


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _above(entry: StreamId) -> StreamId:
    return entry.next() if entry < MAX_ID else entry
