"""Memory, and what the server does when it is full. Pure."""

from __future__ import annotations

from spark_streams.doctor.finding import Finding, Level
from spark_streams.doctor.server_facts import ServerFacts, size

_ABOUT = "memory"
FULL_SOON = 0.85  # of maxmemory, or of the machine


def look(facts: ServerFacts) -> list[Finding]:
    """The limit, what is in use, what is dropped."""
    if "used_memory" not in facts.info:
        return []
    limit, policy = facts.number("maxmemory"), facts.info.get("maxmemory_policy", "noeviction")
    if limit == 0:
        return [_unlimited(facts)]
    return [_policy(facts, limit, policy), *_nearly_full(facts, limit, policy)]


def _unlimited(facts: ServerFacts) -> Finding:
    used, machine = facts.number("used_memory"), facts.number("total_system_memory")
    if machine and used > FULL_SOON * machine:
        return Finding(
            Level.DANGER, _ABOUT, f"{size(used)} in use, no maxmemory, and the machine has {size(machine)}",
            "the system ends the server when there is none left",
            "maxmemory below the machine's, maxmemory-policy noeviction; remove what all groups have read (trim=acked, "
            "onCommit)",
        )  # fmt: skip
    return Finding(
        Level.NOTE, _ABOUT, f"{size(used)} in use, no limit (maxmemory 0)",
        "streams grow until the system ends the server",
        "maxmemory with maxmemory-policy noeviction; remove what all groups have read (trim=acked, onCommit)",
    )  # fmt: skip


def _policy(facts: ServerFacts, limit: int, policy: str) -> Finding:
    dropped = facts.number("evicted_keys")
    so_far = f"; {dropped:,} keys since it started" if dropped else ""
    if policy.startswith("allkeys"):
        return Finding(
            Level.DANGER, _ABOUT,
            f"drops any key when {size(limit)} are full (maxmemory-policy {policy}){so_far}",
            "exactly-once sinks, mode DEADLETTER and noAck are refused. Other queries go on with a warning, and stop "
            "when a stream or a group is gone",
            "maxmemory-policy noeviction",
        )  # fmt: skip
    if policy.startswith("volatile"):
        return Finding(
            Level.NOTE, _ABOUT,
            f"drops keys that expire when {size(limit)} are full (maxmemory-policy {policy}){so_far}",
            "streams and queries' ledgers never expire; leases do, and the ledger of a batch job, which then fails by "
            "name",
            "maxmemory-policy noeviction, where batch jobs write",
        )  # fmt: skip
    return Finding(Level.OK, _ABOUT, f"{size(facts.number('used_memory'))} of {size(limit)} in use, noeviction")


def _nearly_full(facts: ServerFacts, limit: int, policy: str) -> list[Finding]:
    used = facts.number("used_memory")
    if used <= FULL_SOON * limit or policy.startswith("allkeys"):
        return []
    return [
        Finding(
            Level.WARNING, _ABOUT, f"{size(used)} of {size(limit)} in use",
            "when it is full (OOM) queries wait for a minute, go on where there is room, else they fail",
            "a larger maxmemory; remove what all groups have read (trim=acked, onCommit)",
        )
    ]  # fmt: skip
