"""The commands that make, set and enter groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_streams.source.findings.finding import Start
from spark_streams.source.findings.group_state import missing
from spark_streams.source.membership import Membership
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_busy_group, is_key_required, is_no_such_key
from spark_streams.wire.replies.xinfo import group_named


def streams_without_group(server: Server, member: Membership, streams: Sequence[str]) -> list[str]:
    """Those of the streams that do not have the group, or do not exist. Raises WrongKeyTypeError."""
    replies = server.pipeline([("XINFO", "GROUPS", stream) for stream in streams])
    without = []
    for stream, reply in zip(streams, replies, strict=True):
        if isinstance(reply, ReplyError) and not is_no_such_key(reply):
            raise server.error_of(reply, ("XINFO", "GROUPS", stream))
        if group_named(member.group, reply) is None:
            without.append(stream)
    return without


def create_groups_at(
    server: Server, member: Membership, starts: Mapping[str, Start], make_streams: bool = True
) -> list[str]:
    """Make groups where there are none: an id pins the start on the server (S2), and the group is told how many
    entries lie below it, so that it counts from there. The streams that have the group now: without make_streams one
    may have vanished."""
    commands = [
        (
            *("XGROUP", "CREATE", stream, member.group, str(start.position)),
            *(["MKSTREAM"] if make_streams else []),
            *start.words(),
        )
        for stream, start in starts.items()
    ]
    have = []
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if is_key_required(reply):
            continue
        if isinstance(reply, ReplyError) and not is_busy_group(reply):
            raise server.error_of(reply, command)
        have.append(command[2])
    return have


def create_consumers(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """Enter our consumer in the groups of these streams. A group that does not know it was made anew since."""
    commands = [("XGROUP", "CREATECONSUMER", stream, member.group, member.consumer) for stream in streams]
    _require_streams(server, member, commands)


def set_groups_to(server: Server, member: Membership, starts: Mapping[str, Start]) -> None:
    """XGROUP SETID on each of these streams."""
    commands = [
        ("XGROUP", "SETID", stream, member.group, str(start.position), *start.words())
        for stream, start in starts.items()
    ]
    _require_streams(server, member, commands)


def _require_streams(server: Server, member: Membership, commands: Sequence[tuple[str, ...]]) -> None:
    """Send them. Raises DataLossError where a stream has vanished meanwhile, and the named error of any other."""
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if is_key_required(reply):
            raise missing(server, member, command[2], stream_too=True)
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
