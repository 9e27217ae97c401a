"""Who reads some streams: their groups, what is pending in them, and what running queries hold back beyond that.

A query's commit mark may hold entries whatever the group says (commit_mark): the query acknowledges them before they
are processed (at-most-once). A mark without its consumer in the group does not count: a consumer
that was deleted (XGROUP DELCONSUMER, DESTROY) holds nothing.
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
class Standing:
    """What the readers of one stream have come to. groups: all of them; oldest: the lowest entry that is pending in
    one, None: nothing is; held: the entry above which a query holds back all, None: none does.

    Groups move forwards, so what it says is cautious a moment later, too. (One that is made anew or set back meanwhile
    may miss entries, as it may after the removal.)"""

    groups: Sequence[GroupInfo]
    oldest: StreamId | None
    held: StreamId | None

    @property
    def given(self) -> StreamId:
        """All below this id was given to every group, and is held back by no query. There must be a group."""
        given = min(_above(group.last_delivered) for group in self.groups)
        return given if self.held is None else min(given, _above(self.held))

    @property
    def needed(self) -> StreamId:
        """The lowest id that some group has still to be given or to acknowledge, or that a query holds back."""
        return self.given if self.oldest is None else min(self.given, self.oldest)


class Readers:
    """Remembers whom it has met: what is asked of them travels with the next question for the groups, so that looking
    again takes one round trip, as long as nobody is new."""

    def __init__(self) -> None:
        self._groups: set[_Group] = set()
        self._consumers: set[_Reader] = set()

    def look(self, server: Server, streams: Sequence[bytes]) -> dict[bytes, Standing]:
        """Per stream that exists how its readers stand. Raises StreamStateError, ServerReplyError.

        What is pending in a group is asked for behind the group itself: what it is given in between is above where it
        was seen to stand.
        """
        wanted = set(streams)
        known_groups = sorted(group for group in self._groups if group[0] in wanted)
        known_readers = sorted(reader for reader in self._consumers if reader[0] in wanted)
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
        there = {(stream, info.name) for stream, infos in groups.items() for info in infos}
        new = sorted(there - set(known_groups))
        more, older = _read_answers(server, new, server.pipeline(_questions(new)))
        readers |= more
        met = sorted(readers - set(known_readers))
        marks |= dict(zip(met, server.execute_all([("GET", _key(reader)) for reader in met]), strict=True))
        self._groups = (self._groups - set(known_groups)) | there
        self._consumers = (self._consumers - set(known_readers)) | readers
        held = _lowest_held(server, {reader: marks[reader] for reader in readers})
        pending = _lowest_of([*oldest, *older])
        return {stream: Standing(infos, pending.get(stream), held.get(stream)) for stream, infos in groups.items()}


def _questions(groups: Sequence[_Group]) -> list[tuple[str | bytes, ...]]:
    """Who is in each group, and what is pending there."""
    return [
        question
        for stream, group in groups
        for question in (("XINFO", "CONSUMERS", stream, group), ("XPENDING", stream, group))
    ]


def _read_groups(server: Server, streams: Sequence[bytes], replies: Sequence[Reply]) -> dict[bytes, list[GroupInfo]]:
    groups: dict[bytes, list[GroupInfo]] = {}
    for stream, reply in zip(streams, replies, strict=True):
        if is_no_such_key(reply):  # deleted meanwhile
            continue
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, ("XINFO", "GROUPS", stream))
        groups[stream] = groups_in(reply)
    return groups


def _read_answers(
    server: Server, groups: Sequence[_Group], replies: Sequence[Reply]
) -> tuple[set[_Reader], list[tuple[bytes, StreamId]]]:
    """Who can be a query of ours, because its name is text; and of each stream the lowest entry pending in a group."""
    readers: set[_Reader] = set()
    oldest: list[tuple[bytes, StreamId]] = []
    for question, reply in zip(_questions(groups), replies, strict=True):
        if is_no_group(reply) or is_no_such_key(reply):  # let go meanwhile
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
    """Per stream the lowest entry above which a reader holds back all. marks: what each has said."""
    positions = {reader: _held_by(server, reader, mark) for reader, mark in marks.items()}
    return _lowest_of([(reader[0], position) for reader, position in positions.items() if position is not None])


def _lowest_of(ids: Sequence[tuple[bytes, StreamId]]) -> dict[bytes, StreamId]:
    """Per stream the lowest of its ids."""
    lowest: dict[bytes, StreamId] = {}
    for stream, one in ids:
        lowest[stream] = min(one, lowest.get(stream, one))
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
            "commit mark that this version knows: nothing is trimmed. If a newer version wrote it, install that one "
            "here; if the query is gone for good, delete its consumer "
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
