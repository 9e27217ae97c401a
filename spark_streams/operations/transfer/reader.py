"""Read the entries of a range of a stream, page by page. Memory does not depend on the length of the range."""

from __future__ import annotations

from collections.abc import Iterator

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.admin.dead_letters import DEAD_LETTER_LIMITS, DeadLetterLimits, entry_pages
from spark_streams.connector.admin.groups import nth_from
from spark_streams.connector.admin.streams import fetch_shard_sets, missing
from spark_streams.connector.errors import InvalidOptionError, ShardsError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import stream_states
from spark_streams.connector.wire.session import Session
from spark_streams.operations.groups.position import Target
from spark_streams.operations.transfer.entries import Entry

Range = tuple[StreamId, StreamId]  # both IDs included


def find_range(
    server: Server, stream: str, begin: Target | None, end: Target | None, newest: int | None, now_ms: int
) -> Range:
    """Return the range of these options, up to the stream's present last ID. begin: the first entry, if it is an ID;
    end: the last one; a time is the first entry of that time or later, which `end` excludes; newest: only this many
    entries at the end of the range.

    Raises ShardsError for a sharded stream, StreamMissingError, StreamStateError, InvalidOptionError, ServerError."""
    if shard_set := fetch_shard_sets(server, [stream]).get(stream):
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in {shard_set.count} shards, which are streams of their own; "
            f"name each of them, for example {shard_set.names[0]!r} (rstream shards {stream} lists them)"
        )
    head = stream_states(server, [stream])[stream]
    if not head.exists:
        raise missing(server, stream, "list all streams: rstream streams")
    first, last = MIN_ID, head.last
    for target in (begin, end):
        if target is not None and (target.entries is not None or target.end == "latest"):
            raise InvalidOptionError(
                f"{target.text!r} is neither an entry ID nor a time; for the newest entries use --last N"
            )
    if end is not None:
        last = min(end.id, last) if end.id else end.position(server, stream, head, now_ms)
    if begin is not None:
        position = begin.position(server, stream, head, now_ms) if begin.id is None else MIN_ID
        first = begin.id or (position.next() if MIN_ID < position < MAX_ID else position)
    if newest is not None:
        below = nth_from(server, stream, last, -newest)
        first = max(first, below.next() if below > MIN_ID else MIN_ID)
    return first, last


def stream_pages(
    session: Session, stream: str, within: Range, limits: DeadLetterLimits = DEAD_LETTER_LIMITS
) -> Iterator[list[Entry]]:
    """Yield the entries of the range. Raises ServerError."""
    for page in entry_pages(session, stream, *within, limits):
        yield [Entry(StreamId.parse(entry_id), fields) for entry_id, fields in page]
