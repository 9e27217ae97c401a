"""Entries that nobody needs any more: given to a consumer of the group, and acknowledged. For streams that one
group alone reads."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.ids import StreamId
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import groups_in


def remove_done(server: Server, group: str, streams: Sequence[str]) -> None:
    """Trim these streams up to the first entry that is pending, or that the group has yet to deliver. Whatever a crash
    has left is removed by whoever comes next. Raises ServerError.

    The position is asked for before the pending list: what is delivered in between is kept.
    """
    commands: list[tuple[str, ...]] = []
    for stream in streams:
        commands += [("XINFO", "GROUPS", stream), ("XPENDING", stream, group)]
    replies = server.pipeline(commands)
    trims = []
    for stream, groups, pending in zip(streams, replies[0::2], replies[1::2], strict=True):
        if isinstance(groups, ReplyError) or isinstance(pending, ReplyError):
            continue  # it is gone: the next trigger says so
        found = next((info for info in groups_in(groups) if info.name == group.encode()), None)
        if found is not None:
            keep = StreamId.parse(pending[1]) if pending[0] else found.last_delivered.next()
            trims.append(("XTRIM", stream, "MINID", "=", str(keep)))
    server.execute_all(trims)
