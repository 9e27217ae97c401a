"""Consumer lease: one running query per group and consumer, on each of its streams (wire.lease).

Two queries with the same consumer would take each other's entries, also two that are started from one DataFrame. A
query that reads one DataFrame twice (a self-join) has two sources, in two processes. Other queries never claim entries
of a consumer with a live lease (spark_streams.source.pending.claim).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_streams.errors import ConsumerTakenError, UnsupportedError
from spark_streams.model.keys import key_beside
from spark_streams.options.source_options import SourceOptions
from spark_streams.wire import lease
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.eviction import drops_any_key, evicting_policy
from spark_streams.wire.replies.reply_errors import is_syntax_error, is_wrong_number_of_arguments

# -- counting server ---------------------------------------------------------------------------------------------------
# Check that the server counts the entries of streams and groups. Without these counts a query cannot notice losses.
#
# Since Redis 7.0, and in every Valkey, a stream has the number of entries ever added, and a group the number it has
# read. By these numbers the query notices entries trimmed unread, a stream created again, and a server in an older
# state.


# The key does not exist, so nothing is set. A server without these arguments refuses the syntax first (R43).
_PROBE = ("XSETID", "rstream:none", "0-0", "ENTRIESADDED", "0", "MAXDELETEDID", "0-0")


def require_entry_counts(server: Server) -> None:
    """Raise UnsupportedError if the server does not have these counts, or ServerUnreachableError."""
    [reply] = server.pipeline([_PROBE])
    if is_wrong_number_of_arguments(reply) or is_syntax_error(reply):
        raise UnsupportedError(
            f"cannot read a stream from the server at {server.address}: Redis before 7.0 has no entries-added and "
            "entries-read, so lost entries could not be noticed. Use Redis 7.0 or later, or Valkey"
        )


# -- server checks -----------------------------------------------------------------------------------------------------
# Check the eviction policy: refuse a server that may drop keys which the query needs to lose no entries.
#
# A query notices dropped streams, groups and pending lists at its next trigger. It does not notice all other keys:
#
# - mode DEADLETTER: notes on entries that do not fit the schema, until they are dead letters (source.notes.task_notes);
# - retryDelay: the streams in which entries wait for a retry (source.group.retries).


_log = logging.getLogger("spark_streams.source")


def require_no_eviction(server: Server, options: SourceOptions) -> None:
    """Check the server's maxmemory-policy, if the user may read it. Raises UnsupportedError if it endangers this query,
    ServerUnreachableError."""
    policy = evicting_policy(server)
    if not drops_any_key(policy):
        return
    danger = f"the server at {server.address} drops any key when its memory is full (maxmemory-policy {policy})"
    if options.mode == "DEADLETTER":
        raise UnsupportedError(
            f"{danger}, also the notes on entries that are to become dead letters. Set the policy to noeviction (or "
            "volatile-lru), or choose another mode"
        )
    if options.retry_delay:
        raise UnsupportedError(
            f"{danger}, also entries that wait for a retry. Set the policy to noeviction (or volatile-lru), or read "
            "without retryDelay"
        )
    _log.warning("%s, also streams and groups. Set the policy to noeviction (or volatile-lru)", danger)


# -- consumer lease ----------------------------------------------------------------------------------------------------


def lease_key(stream: str, group: str, consumer: str) -> bytes:
    """Return the key of one stream's lease."""
    return key_beside(stream, "lease", group, consumer)


class Lease(lease.Lease):
    """Lease of one query on its streams. Raises ConsumerTakenError if another query has the consumer."""

    def __init__(self, address: Address, group: str, consumer: str, terms: lease.Terms = lease.DEFAULT_TERMS) -> None:
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
        leases = server.pipeline([("GET", lease_key(stream, self._group, consumer)) for stream, consumer in consumers])
        held = lease.are_held(server, leases, self._terms.processes)
        return {pair for pair, is_held in zip(consumers, held, strict=True) if is_held}
