"""Whether a server evicts keys when its memory is full (maxmemory, maxmemory-policy)."""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.connector.wire.connection.connection import Reply
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import info
from spark_streams.connector.wire.replies.reply_errors import is_forbidden

# A user without +info may not send it.
ASK = ("INFO", "memory")


def evicting_policy(server: Server) -> str | None:
    """Return the eviction policy; None if no key is evicted (`noeviction`, or no maxmemory), or if INFO is not
    permitted.

    `allkeys-…` evicts any key, `volatile-…` keys with an expiry. Raises ServerError.
    """
    return find_worst_policy(node.execute_all([ASK], is_forbidden)[0] for node in server.nodes())


def find_worst_policy(replies: Iterable[Reply]) -> str | None:
    """Return the policy that evicts most, from the replies of all servers to ASK."""
    policies = [policy_in(reply) for reply in replies]
    return next((policy for policy in policies if drops_any_key(policy)), next(filter(None, policies), None))


def policy_in(memory: Reply) -> str | None:
    """Return the policy from a reply to ASK, as `evicting_policy`."""
    facts = {} if is_forbidden(memory) else info(memory)
    policy = facts.get("maxmemory_policy", "noeviction")
    return None if policy == "noeviction" or facts.get("maxmemory", "0") == "0" else policy


def drops_any_key(policy: str | None) -> bool:
    """Whether keys without an expiry are evicted, too."""
    return policy is not None and policy.startswith("allkeys")
