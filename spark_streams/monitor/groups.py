"""What a stream's groups are doing, read in one round trip; nothing on the server changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_streams.wire.connection import Connection, ReplyError
from spark_streams.wire.replies import pairs
from spark_streams.wire.reply_errors import is_no_such_key


@dataclass(frozen=True)
class GroupView:
    """One group of one stream. lag: entries it has yet to be given, None where the server cannot tell."""

    stream: str
    group: str
    consumers: int
    pending: int
    lag: int | None
    last_delivered: str


@dataclass(frozen=True)
class StreamView:
    """One stream. length: entries it holds; added: entries ever added, None before Redis 7."""

    stream: str
    length: int
    added: int | None
    last: str
    groups: tuple[GroupView, ...]


def view_streams(server: Connection, streams: Sequence[str | bytes]) -> list[StreamView]:
    """The streams that exist among these, in order; bytes of a name that are no UTF-8 are shown as `\\xff`.

    Raises WrongKeyTypeError.
    """
    commands = [("XINFO", what, stream) for stream in streams for what in ("STREAM", "GROUPS")]
    replies = server.pipeline(commands)
    views = []
    for at, stream in enumerate(streams):
        info, groups = replies[2 * at], replies[2 * at + 1]
        if is_no_such_key(info):
            continue
        for reply in (info, groups):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, commands[2 * at])
        fields = pairs(info)
        name = stream if isinstance(stream, str) else stream.decode("utf-8", "backslashreplace")
        views.append(
            StreamView(
                name,
                fields[b"length"],
                fields.get(b"entries-added"),
                fields[b"last-generated-id"].decode(),
                tuple(_group(name, pairs(group)) for group in groups),
            )
        )
    return views


def _group(stream: str, fields: dict[bytes, Any]) -> GroupView:
    return GroupView(
        stream,
        fields[b"name"].decode("utf-8", "backslashreplace"),
        fields[b"consumers"],
        fields[b"pending"],
        fields.get(b"lag"),
        fields[b"last-delivered-id"].decode(),
    )
