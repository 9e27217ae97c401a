"""Streams and their groups, read in one round trip. Nothing on the server changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_no_such_key
from spark_streams.wire.replies.xinfo import GroupInfo, groups_in, stream_in


@dataclass(frozen=True)
class GroupView:
    """A group of a stream. lag: undelivered entries, None if the server does not know."""

    stream: str
    group: str
    consumers: int
    pending: int
    lag: int | None
    last_delivered: str


@dataclass(frozen=True)
class StreamView:
    """A stream. length: number of entries; added: entries ever added, None before Redis 7."""

    stream: str
    length: int
    added: int | None
    last: str
    groups: tuple[GroupView, ...]


def view_streams(server: Server, streams: Sequence[str | bytes]) -> list[StreamView]:
    """Return those of the streams that exist, in order. Bytes of a name that are not UTF-8 are shown as `\\xff`.

    Raises WrongKeyTypeError.
    """
    replies = server.pipeline(
        [("XINFO", subcommand, stream) for stream in streams for subcommand in ("STREAM", "GROUPS")]
    )
    views = []
    for stream, description, groups in zip(streams, replies[0::2], replies[1::2], strict=True):
        if is_no_such_key(description):
            continue
        for reply in (description, groups):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, ("XINFO", "STREAM", stream))
        state, name = stream_in(description), shown(stream)
        groups_of = tuple(_group(name, info) for info in groups_in(groups))
        views.append(StreamView(name, state.length, state.added, str(state.last), groups_of))
    return views


def shown(name: bytes | str) -> str:
    """Return a name as text. Bytes that are not UTF-8 are shown as `\\xff`."""
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _group(stream: str, info: GroupInfo) -> GroupView:
    return GroupView(stream, shown(info.name), info.consumers, info.pending, info.lag, str(info.last_delivered))
