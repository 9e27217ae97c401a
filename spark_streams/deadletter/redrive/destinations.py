"""Streams that dead letters may be redriven to.

Any client that may append to a dead-letter stream chooses `dl.stream` and `dl.group`, and a redrive would write there
with the operator's rights. So a dead letter is moved back only if its group exists on its stream:

    dl.stream = orders, dl.group = billing     XINFO GROUPS orders has billing      moved
    a retry stream of orders                   the name of the retry stream         moved, only to orders
    rstream:…                                  keys of the product                  never moved
    others                                     moved only if the operator names the stream (--allow, --to)

If the operator names streams (`allow`), only these are allowed: a forged group does not allow another stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_streams.deadletter.criteria import matches
from spark_streams.deadletter.envelope import raw
from spark_streams.model.keys import is_product_key, read_retry_stream
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_not_permitted
from spark_streams.wire.replies.xinfo import groups_in

Origin = tuple[str, str]  # (stream, group) of a dead letter, as text


class Destinations:
    """Destinations of one redrive. stream: of the dead letters; allow: names or patterns of streams that the operator
    allows. It remembers the groups of streams."""

    def __init__(self, stream: str, allow: Sequence[str]) -> None:
        self._allow = allow
        waiting = read_retry_stream(stream)
        self._retried_stream = None if waiting is None else waiting.stream
        self._groups: dict[str, frozenset[bytes]] = {}

    def open_to(self, server: Server, origins: Iterable[Origin]) -> frozenset[Origin]:
        """Return the origins that are allowed as destinations. Raises ServerError."""
        candidates = [origin for origin in origins if origin[0] and not is_product_key(origin[0])]
        if self._allow:
            return frozenset(origin for origin in candidates if matches(self._allow, origin[0]))
        if self._retried_stream is not None:
            return frozenset(origin for origin in candidates if origin[0] == self._retried_stream)
        self._fetch_groups(server, sorted({stream for stream, _ in candidates} - self._groups.keys()))
        return frozenset((stream, group) for stream, group in candidates if raw(group) in self._groups[stream])

    def _fetch_groups(self, server: Server, streams: Sequence[str]) -> None:
        """Fetch the groups of streams. A key that does not exist, is not a stream or may not be read has none."""
        replies = server.pipeline([("XINFO", "GROUPS", raw(stream)) for stream in streams])
        for stream, reply in zip(streams, replies, strict=True):
            if is_not_permitted(reply) and "command" in str(reply):
                raise server.error_of(reply, ("XINFO", "GROUPS", stream))
            groups = () if isinstance(reply, ReplyError) else groups_in(reply)
            self._groups[stream] = frozenset(group.name for group in groups)
