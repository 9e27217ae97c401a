"""Consumer lease: one running query per group and consumer, on each of its streams (wire.lease).

Two queries with the same consumer would take each other's entries, also two that are started from one DataFrame. A
query that reads one DataFrame twice (a self-join) has two sources, in two processes. Other queries never claim entries
of a consumer with a live lease (spark_streams.connector.source.pending.claim).
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.connector.errors import ConsumerTakenError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.wire import lease
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.server import Server


def lease_key(stream: str, group: str, consumer: str) -> bytes:
    """Return the key of one stream's lease."""
    return key_beside(stream, "lease", group, consumer)


class ConsumerLease(lease.Lease):
    """Lease of one query on its streams. Raises ConsumerTakenError if another query has the consumer."""

    def __init__(
        self, address: Address, group: str, consumer: str, terms: lease.LeaseTerms = lease.DEFAULT_TERMS
    ) -> None:
        super().__init__(address, group, terms)
        self._group, self._consumer = group, consumer

    def key_of(self, stream: str) -> bytes:
        return lease_key(stream, self._group, self._consumer)

    def taken(self, stream: str, where: str) -> ConsumerTakenError:
        return ConsumerTakenError(
            f"stream {stream!r} at {self._address}: another running query is consumer {self._consumer!r} of group "
            f"{self._group!r}{where}, so this query is refused. Call load() once for each query. Set another group "
            "(both queries get all entries) or another consumer (they share the entries), or stop the other query. If "
            "this query reads one load() twice (a self-join), it takes the consumer from itself: call load() for each "
            "side, each with its own option group"
        )

    def live(self, server: Server, consumers: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of these (stream, consumer) of the group that have the lease of a running query."""
        keys = [lease_key(stream, self._group, consumer) for stream, consumer in consumers]
        leases = server.execute_all([("GET", key) for key in keys])
        held = lease.are_held(server, leases, self._terms.processes)
        return {pair for pair, is_held in zip(consumers, held, strict=True) if is_held}
