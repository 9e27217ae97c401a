"""Which streams dead letters may be sent back to.

Whoever may append to a dead-letter stream writes `dl.stream` and `dl.group`; the operator's rights would write there.
So a dead letter goes back by itself only if the server knows its group on its stream:

    dl.stream = orders, dl.group = billing     XINFO GROUPS orders has billing      it goes
    a retry stream of orders                   its own name says orders             it goes, to orders alone
    rstream:…                                  the product's own keys               never
    any other                                  it stays, unless the operator names the stream (--allow, --to)

With names (`allow`) these alone are open: a forged group does not open another stream.
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
    """Of one redrive. stream: of the dead letters; allow: names or patterns of streams, as the operator gave them. It
    remembers what the server has said."""

    def __init__(self, stream: str, allow: Sequence[str]) -> None:
        self._allow = allow
        waiting = read_retry_stream(stream)
        self._waits_for = None if waiting is None else waiting.stream
        self._groups: dict[str, frozenset[bytes]] = {}

    def open_to(self, server: Server, origins: Iterable[Origin]) -> frozenset[Origin]:
        """Those of these that may go back to their stream. Raises ServerError."""
        asked = [one for one in origins if one[0] and not is_product_key(one[0])]
        if self._allow:
            return frozenset(one for one in asked if matches(self._allow, one[0]))
        if self._waits_for is not None:
            return frozenset(one for one in asked if one[0] == self._waits_for)
        self._ask(server, sorted({stream for stream, _ in asked} - self._groups.keys()))
        return frozenset((stream, group) for stream, group in asked if raw(group) in self._groups[stream])

    def _ask(self, server: Server, streams: Sequence[str]) -> None:
        """A key that is no stream, is not there or may not be looked at has no group."""
        replies = server.pipeline([("XINFO", "GROUPS", raw(stream)) for stream in streams])
        for stream, reply in zip(streams, replies, strict=True):
            if is_not_permitted(reply) and "command" in str(reply):
                raise server.error_of(reply, ("XINFO", "GROUPS", stream))
            known = () if isinstance(reply, ReplyError) else groups_in(reply)
            self._groups[stream] = frozenset(group.name for group in known)
