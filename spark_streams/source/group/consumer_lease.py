"""The lease: one running query per group and consumer, on each of its streams (lease says how long it lasts).

Two queries under one name would take each other's entries, also two that are started from one load (one DataFrame).
Entries of a consumer with a live lease are never claimed by others (spark_streams.source.recovery.claim).
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.errors import ConsumerTakenError
from spark_streams.model.keys import key_beside
from spark_streams.wire import lease
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.server import Server


def lease_key(stream: str, group: str, consumer: str) -> bytes:
    """The key of one stream's lease."""
    return key_beside(stream, "lease", group, consumer)


class Lease(lease.Lease):
    """The lease of one query over its streams. Raises ConsumerTakenError where another query has the consumer."""

    def __init__(self, address: Address, group: str, consumer: str, terms: lease.Terms = lease.DEFAULT_TERMS) -> None:
        super().__init__(address, group, terms)
        self._group, self._consumer = group, consumer

    def key_of(self, stream: str) -> bytes:
        return lease_key(stream, self._group, self._consumer)

    def taken(self, stream: str, where: str) -> ConsumerTakenError:
        return ConsumerTakenError(
            f"stream {stream!r} at {self._address}: another running query is consumer {self._consumer!r} of group "
            f"{self._group!r}{where}, and one load is for one query: give this one a load of its own, with another "
            "group (option group: both get all entries) or another consumer (option consumer: they share them), or "
            "stop the other one"
        )

    def live(self, server: Server, asked: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Which of these (stream, consumer) of the group have a lease of a query that runs, as far as can be seen from
        here."""
        leases = server.pipeline([("GET", lease_key(stream, self._group, consumer)) for stream, consumer in asked])
        held = lease.are_held(server, leases, self._terms.processes)
        return {pair for pair, is_held in zip(asked, held, strict=True) if is_held}
