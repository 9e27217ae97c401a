"""Commands that create and set groups, and create consumers in them."""

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
    """Return the streams that do not have the group, or do not exist. Raises WrongKeyTypeError."""
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
    """Create the groups that do not exist, each at an ID (S2) and with the number of entries below it. Return the
    streams that now have the group. make_streams: create missing streams; otherwise they are left out."""
    commands = [
        (
            *("XGROUP", "CREATE", stream, member.group, str(start.position)),
            *(["MKSTREAM"] if make_streams else []),
            *start.words(),
        )
        for stream, start in starts.items()
    ]
    created = []
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if is_key_required(reply):
            continue
        if isinstance(reply, ReplyError) and not is_busy_group(reply):
            raise server.error_of(reply, command)
        created.append(command[2])
    return created


def create_consumers(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """Create the query's consumer in these groups. If a group later lacks it, the group was created again."""
    commands = [("XGROUP", "CREATECONSUMER", stream, member.group, member.consumer) for stream in streams]
    _require_streams(server, member, commands)


def set_groups_to(server: Server, member: Membership, starts: Mapping[str, Start]) -> None:
    """Set the groups of these streams (XGROUP SETID)."""
    commands = [
        ("XGROUP", "SETID", stream, member.group, str(start.position), *start.words())
        for stream, start in starts.items()
    ]
    _require_streams(server, member, commands)


def _require_streams(server: Server, member: Membership, commands: Sequence[tuple[str, ...]]) -> None:
    """Send the commands. Raises DataLossError if a stream no longer exists, and the named error of any other reply."""
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if is_key_required(reply):
            raise missing(server, member, command[2], stream_too=True)
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
