"""What a server is configured to: limits for one argument and one request, and whether it evicts keys.

    proto-max-bulk-len           bytes of one argument (default 512 MB)
    client-query-buffer-limit    bytes of a request, or of a transaction, that is being received (default 1 GB)

The server closes the connection of a client that exceeds them (FACTS R22), and retries would never succeed.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection.connection import Reply
from spark_streams.connector.wire.connection.named_errors import ASK, Memory
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_forbidden

SMALL = 1 << 20  # bytes that every server accepts: neither limit can be lower
NAMES = ("proto-max-bulk-len", "client-query-buffer-limit")


def fetch_limits(server: Server) -> tuple[int, int] | None:
    """Return both limits, in this order; None if the user may not read them, or the server has no CONFIG. Raises
    ServerError."""
    replies = server.execute_all([("CONFIG", "GET", name) for name in NAMES], is_forbidden)
    if any(is_forbidden(reply) or len(reply) != 2 for reply in replies):
        return None
    return int(replies[0][1]), int(replies[1][1])


def find_exceeded_limit(address: Address, argument: int, request: int) -> str:
    """Return the limit that an argument and a request of these sizes exceed, for a message; empty if none, or unknown.

    Call it after a connection was lost: it opens a connection of its own.
    """
    if max(argument, request) <= SMALL:
        return ""
    try:
        with connect(address) as server:
            limits = fetch_limits(server)
    except RStreamError:
        return ""  # the server is unavailable; its next user reports that
    if limits is None:
        return ""
    sizes = zip(NAMES, (argument, request), limits, strict=True)
    return next((f"takes {limit} ({name})" for name, size, limit in sizes if size > limit), "")


# -- whether a server evicts keys when its memory is full (maxmemory, maxmemory-policy) --------------------------------


def evicting_policy(server: Server) -> str | None:
    """Return the eviction policy; None if no key is evicted (`noeviction`, or no maxmemory), or if INFO is not
    permitted.

    `allkeys-…` evicts any key, `volatile-…` keys with an expiry. Raises ServerError.
    """
    return find_worst_policy(node.execute_all([ASK], is_forbidden)[0] for node in server.nodes())


def find_worst_policy(replies: Iterable[Reply]) -> str | None:
    """Return the policy that evicts most, from the replies of all servers to ASK."""
    memories = [Memory.read(reply) for reply in replies]
    policies = [memory.policy for memory in memories if memory.limit and memory.policy != "noeviction"]
    return next((policy for policy in policies if drops_any_key(policy)), next(iter(policies), None))


def drops_any_key(policy: str | None) -> bool:
    """Whether keys without an expiry are evicted, too."""
    return policy is not None and policy.startswith("allkeys")
