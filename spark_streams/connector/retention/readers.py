"""Groups of streams, and the entries that are pending in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.retention.forgotten import GroupName, ReadingGroup
from spark_streams.connector.wire.connection.connection import Reply, ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_no_group, is_no_such_key
from spark_streams.connector.wire.replies.xinfo import GroupInfo, groups_in

_DELETED = (is_no_group, is_no_such_key)  # in the meantime


@dataclass(frozen=True)
class RetentionState:
    """Positions of the groups of one stream. oldest: their lowest pending entry, None if nothing is pending; limit: the
    position of the query that removes, above which it has read nothing.

    Groups move forwards, so the state is still safe a moment later. (A group that is created again or set back
    meanwhile may miss entries, as it may after the removal.)"""

    groups: Sequence[GroupInfo]
    oldest: StreamId | None
    limit: StreamId = MAX_ID

    @property
    def delivered(self) -> StreamId:
        """ID below which all entries were delivered to every group, and read by the query. Needs a group."""
        return _above(min(self.limit, *(group.last_delivered for group in self.groups)))

    @property
    def needed(self) -> StreamId:
        """Lowest ID that is undelivered or unacknowledged in a group."""
        return self.delivered if self.oldest is None else min(self.delivered, self.oldest)


class Readers:
    """Fetches the groups of streams. It remembers groups and asks for their pending entries together with the next
    request, so that a further fetch takes one round trip if no group is new."""

    def __init__(self) -> None:
        self._groups: set[GroupName] = set()

    def forget(self, streams: Collection[bytes]) -> None:
        """Forget these streams. They may be fetched again."""
        self._groups = {group for group in self._groups if group[0] not in streams}

    def fetch(self, server: Server, streams: Sequence[bytes]) -> dict[bytes, RetentionState]:
        """Return the state of each stream that exists. Raises ServerReplyError.

        The pending entries of a group are fetched after the group itself: entries that are delivered in between are
        above the position that was read.
        """
        requested = set(streams)
        known_groups = sorted(group for group in self._groups if group[0] in requested)
        questions = [*[("XINFO", "GROUPS", stream) for stream in streams], *_questions(known_groups)]
        replies = server.execute_all(questions, *_DELETED)
        groups = _read_groups(streams, replies[: len(streams)])
        oldest = _read_answers(known_groups, replies[len(streams) :])
        present_groups = {(stream, info.name) for stream, infos in groups.items() for info in infos}
        new_groups = sorted(present_groups - set(known_groups))
        oldest |= _read_answers(new_groups, server.execute_all(_questions(new_groups), *_DELETED))
        self._groups = (self._groups - set(known_groups)) | present_groups
        pending = _lowest_of([(group[0], entry) for group, entry in oldest.items()])
        return {stream: RetentionState(infos, pending.get(stream)) for stream, infos in groups.items()}


def fetch_readers(server: Server, streams: Sequence[bytes]) -> dict[GroupName, ReadingGroup]:
    """Return the groups of these streams, each with its lowest pending entry. Raises ServerReplyError."""
    replies = server.execute_all([("XINFO", "GROUPS", stream) for stream in streams], *_DELETED)
    groups = _read_groups(streams, replies)
    infos = {(stream, info.name): info for stream, of_stream in groups.items() for info in of_stream}
    oldest = _read_answers(list(infos), server.execute_all(_questions(list(infos)), *_DELETED))
    return {group: ReadingGroup(info, oldest.get(group)) for group, info in infos.items()}


def _questions(groups: Sequence[GroupName]) -> list[tuple[str | bytes, ...]]:
    """Return the command for the pending entries of each group."""
    return [("XPENDING", stream, group) for stream, group in groups]


def _read_groups(streams: Sequence[bytes], replies: Sequence[Reply]) -> dict[bytes, list[GroupInfo]]:
    return {
        stream: groups_in(reply)
        for stream, reply in zip(streams, replies, strict=True)
        if not isinstance(reply, ReplyError)  # one of _DELETED
    }


def _read_answers(groups: Sequence[GroupName], replies: Sequence[Reply]) -> dict[GroupName, StreamId]:
    """Return the lowest pending entry of each group that has one."""
    return {
        group: StreamId.parse(reply[1])
        for group, reply in zip(groups, replies, strict=True)
        if not isinstance(reply, ReplyError) and reply[0]
    }


def _lowest_of(ids: Sequence[tuple[bytes, StreamId]]) -> dict[bytes, StreamId]:
    """Return the lowest ID of each stream."""
    lowest: dict[bytes, StreamId] = {}
    for stream, entry_id in ids:
        lowest[stream] = min(entry_id, lowest.get(stream, entry_id))
    return lowest


def _above(entry: StreamId) -> StreamId:
    return entry.next() if entry < MAX_ID else entry
