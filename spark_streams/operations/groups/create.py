"""Create a group (XGROUP CREATE) with the number of entries below its position, so that its lag is known at once."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.connector.admin.groups import DEFAULT_QUERY, Start, change, count_read
from spark_streams.connector.admin.streams import missing
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_no_such_key
from spark_streams.connector.wire.replies.xinfo import group_named, read_stream_state
from spark_streams.operations.groups.target import Target


@dataclass(frozen=True)
class Created:
    """A group that was, or would be, created. makes_stream: the stream does not exist yet; lag: entries that are not
    delivered to it yet, None if the server does not count them."""

    stream: str
    group: str
    position: str
    lag: int | None
    makes_stream: bool


def plan_create(
    server: Server, stream: str, group: str, target: Target, now_ms: int, makes_stream: bool
) -> tuple[Created, Start]:
    """Return the effect of creating the group. Raises StreamStateError if it exists, StreamMissingError if the stream
    does not exist and is not to be created."""
    described, groups = server.execute_all([("XINFO", "STREAM", stream), ("XINFO", "GROUPS", stream)], is_no_such_key)
    if is_no_such_key(described) and not makes_stream:
        raise missing(server, stream, "create it, too, with --mkstream")
    head = read_stream_state(server, stream, described)
    if group_named(group, groups) is not None:
        raise StreamStateError(
            f"stream {stream!r} at {server.address} has a group {group!r} already. To move it: rstream groups seek"
        )
    position = target.position(server, stream, head, now_ms)
    # If the stream does not exist yet, it is not known whether the server counts entries.
    read = count_read(server, stream, head, position) if head.exists else None
    lag = 0 if not head.exists else None if head.added is None or read is None else head.added - read
    return Created(stream, group, str(position), lag, not head.exists), Start(position, read)


def create(server: Server, stream: str, group: str, target: Target, now_ms: int, makes_stream: bool) -> Created:
    """Create the group. Raises the errors of plan_create, GroupInUseError, ServerError."""
    planned, start = plan_create(server, stream, group, target, now_ms, makes_stream)
    makes = ["MKSTREAM"] if makes_stream else []
    command = ("XGROUP", "CREATE", stream, group, str(start.position), *makes, *start.words())
    change(server, stream, group, [DEFAULT_QUERY], [command])
    return planned
