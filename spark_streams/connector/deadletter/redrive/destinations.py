"""Streams that dead letters may be redriven to.

Any client that may append to a dead-letter stream chooses `dl.stream` and `dl.group`, and a redrive would write there
with the operator's rights. So a dead letter is moved back only to an origin that a key of the product names. Queries
and consumers write it with their dead letters, and a producer has no right to it:

    dl.stream = orders, dl.group = billing     rstream:origins:{orders:dead} has both      moved
    a retry stream of orders                   the name of the retry stream                moved, only to orders
    rstream:…                                  keys of the product                         never moved
    others                                     moved only if the operator names the stream (--allow, --to)

A parking stream has the origins of its dead-letter stream. If the operator names streams (`allow`), only these are
allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.connector.keys import is_product_key, origin_field, origins_key
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.scan import names_and_patterns

PARKED = ":parked"  # the end of the default name of a parking stream
Origin = tuple[str, str]  # (stream, group) of a dead letter, as text


class Destinations:
    """Destinations of one redrive. stream: of the dead letters; allow: names or patterns of streams that the operator
    allows; exact: all are names; recorded: these only if they are recorded, too. It remembers origins."""

    def __init__(self, stream: str, allow: Sequence[str], exact: bool = False, recorded: bool = False) -> None:
        self._allow, self._exact, self._recorded = allow, exact, recorded
        self._allowed: NamesAndPatterns | None = None
        self._keys = [origins_key(stream), origins_key(stream.removesuffix(PARKED))]
        self._is_known: dict[Origin, bool] = {}

    def open_to(self, server: Server, origins: Iterable[Origin]) -> frozenset[Origin]:
        """Return the origins that are allowed as destinations. Raises ServerError."""
        candidates = [origin for origin in origins if origin[0] and not is_product_key(origin[0])]
        if self._allow:
            self._allowed = self._allowed or names_and_patterns(server, self._allow, self._exact)
            candidates = [origin for origin in candidates if self._allowed.selects(origin[0])]
            if not self._recorded:
                return frozenset(candidates)
        self._look_up(server, sorted({*candidates} - self._is_known.keys()))
        return frozenset(origin for origin in candidates if self._is_known[origin])

    def _look_up(self, server: Server, origins: Sequence[Origin]) -> None:
        """Look up which of these origins are recorded."""
        if not origins:
            return
        fields = [origin_field(*origin) for origin in origins]
        replies = server.execute_all([("HMGET", key, *fields) for key in self._keys])
        for origin, *values in zip(origins, *replies, strict=True):
            self._is_known[origin] = any(value is not None for value in values)
