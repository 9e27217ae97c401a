"""Whether a server drops keys by itself when its memory is full (maxmemory, maxmemory-policy)."""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.wire.connection.connection import Reply
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import info

# A user without +info may not ask.
ASK = ("INFO", "memory")


def evicting_policy(server: Server) -> str | None:
    """The policy under which it does; None where it never does (`noeviction`, or no maxmemory), or where one may not
    ask. `allkeys-…` drops any key, `volatile-…` those that expire. Raises ServerUnreachableError."""
    return worst_of(node.pipeline([ASK])[0] for node in server.nodes())


def worst_of(replies: Iterable[Reply]) -> str | None:
    """The same from the replies of all servers to ASK: of the one that drops most."""
    policies = [policy_in(reply) for reply in replies]
    return next((one for one in policies if drops_any_key(one)), next(filter(None, policies), None))


def policy_in(memory: Reply) -> str | None:
    """The same from the reply to ASK, for whoever asks other things with it."""
    facts = info(memory) if isinstance(memory, bytes) else {}
    policy = facts.get("maxmemory_policy", "noeviction")
    return None if policy == "noeviction" or facts.get("maxmemory", "0") == "0" else policy


def drops_any_key(policy: str | None) -> bool:
    """Whether keys that never expire are dropped, too."""
    return policy is not None and policy.startswith("allkeys")
