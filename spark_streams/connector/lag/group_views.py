"""Streams and their groups, read in one round trip, and their released entries in another. Nothing on the server
changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.printable import name_text
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_no_such_key
from spark_streams.connector.wire.replies.xinfo import (
    GroupInfo,
    IdempotentAdds,
    StreamEnds,
    ends_in,
    groups_in,
    idempotent_adds_in,
    lag_of,
    released_in,
    stream_in,
)


@dataclass(frozen=True)
class GroupView:
    """A group of a stream."""

    stream: str
    group: str
    consumers: int
    pending: int
    lag: int | None  # undelivered entries; None: the server does not know
    last_delivered: str
    released: int | None = None  # pending entries that a consumer released (XNACK); None: not counted


@dataclass(frozen=True)
class StreamView:
    """A stream."""

    stream: str
    length: int  # number of entries
    added: int | None  # entries ever added; None before Redis 7
    last: str
    groups: tuple[GroupView, ...]
    idempotent: IdempotentAdds | None = None  # its adds with XADD IDMP; None if there were none


def view_streams(server: Server, streams: Sequence[str | bytes], count_released: bool = False) -> list[StreamView]:
    """Return those of the streams that exist, in order. Bytes of a name that are not UTF-8 are shown as `\\xff`.
    count_released: also count the released entries of each group, in a second round trip.

    Raises WrongKeyTypeError.
    """
    streams = list(dict.fromkeys(streams))
    replies = server.pipeline(
        [("XINFO", subcommand, stream) for stream in streams for subcommand in ("STREAM", "GROUPS")]
    )
    views: list[StreamView] = []
    infos: dict[str | bytes, list[GroupInfo]] = {}
    for stream, description, groups in zip(streams, replies[0::2], replies[1::2], strict=True):
        if is_no_such_key(description):
            continue
        for reply in (description, groups):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, ("XINFO", "STREAM", stream))
        state, ends = stream_in(description), ends_in(description)
        infos[stream] = [info._replace(lag=_lag(info, ends)) for info in groups_in(groups)]
        adds = idempotent_adds_in(description)
        views.append(StreamView(name_text(stream), state.length, state.added, str(state.last), (), adds))
    released = _released(server, infos) if count_released else {}
    return [
        replace(
            view, groups=tuple(_group(view.stream, info, released.get((stream, info.name))) for info in infos[stream])
        )
        for view, stream in zip(views, infos, strict=True)
    ]


def _released(server: Server, infos: Mapping[str | bytes, Sequence[GroupInfo]]) -> dict[tuple[str | bytes, bytes], int]:
    """Return the released entries of each group, without groups whose pending entries the user may not list."""
    groups = [(stream, info) for stream, of_stream in infos.items() for info in of_stream]
    pending = [(stream, info.name) for stream, info in groups if info.pending]
    replies = server.pipeline([("XPENDING", stream, group) for stream, group in pending])
    counts = {(stream, info.name): 0 for stream, info in groups if not info.pending}
    for group, reply in zip(pending, replies, strict=True):
        if not isinstance(reply, ReplyError):
            counts[group] = released_in(reply)
    return counts


def _lag(info: GroupInfo, ends: StreamEnds | None) -> int | None:
    return 0 if ends is None else lag_of(info, ends.length, ends.first[0], ends.last[0])


def _group(stream: str, info: GroupInfo, released: int | None) -> GroupView:
    position = str(info.last_delivered)
    return GroupView(stream, name_text(info.name), info.consumers, info.pending, info.lag, position, released)
