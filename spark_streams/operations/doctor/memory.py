"""Check of the memory, and of what the server does when it is full. Pure."""

from __future__ import annotations

from spark_streams.base.sizes import size
from spark_streams.operations.doctor.finding import Finding, Level
from spark_streams.operations.doctor.server_facts import ServerFacts

_ABOUT = "memory"
FULL_SOON = 0.85  # of maxmemory, or of the machine


def check(facts: ServerFacts) -> list[Finding]:
    """Check the memory limit, the memory in use, and the eviction policy."""
    if "used_memory" not in facts.info:
        return []
    limit, policy = facts.number("maxmemory"), facts.info.get("maxmemory_policy", "noeviction")
    if limit == 0:
        return [_unlimited(facts)]
    return [*_eviction(facts, limit, policy), *_used(facts, limit, policy)]


def _unlimited(facts: ServerFacts) -> Finding:
    used, machine = facts.number("used_memory"), facts.number("total_system_memory")
    if machine and used > FULL_SOON * machine:
        return Finding(
            Level.DANGER, _ABOUT, f"{size(used)} in use, no maxmemory, and the machine has {size(machine)}",
            "the operating system kills the server when no memory is left",
            "set maxmemory below the machine's memory, and maxmemory-policy noeviction; trim entries that all groups "
            "have read (trim=acked, onCommit)",
        )  # fmt: skip
    return Finding(
        Level.NOTE, _ABOUT, f"{size(used)} in use, no limit (maxmemory 0)",
        "streams grow until the operating system kills the server",
        "set maxmemory, and maxmemory-policy noeviction; trim entries that all groups have read (trim=acked, onCommit)",
    )  # fmt: skip


def _eviction(facts: ServerFacts, limit: int, policy: str) -> list[Finding]:
    dropped = facts.number("evicted_keys")
    so_far = f"; evicted {dropped:,} keys since its start" if dropped else ""
    if policy.startswith("allkeys"):
        return [Finding(
            Level.DANGER, _ABOUT,
            f"evicts any key when {size(limit)} are full (maxmemory-policy {policy}){so_far}",
            "exactly-once sinks, mode DEADLETTER and noAck are refused. Other queries run with a warning, and fail "
            "when a stream or a group was evicted",
            "CONFIG SET maxmemory-policy noeviction",
        )]  # fmt: skip
    if policy.startswith("volatile"):
        return [Finding(
            Level.NOTE, _ABOUT,
            f"evicts keys with a time to live when {size(limit)} are full (maxmemory-policy {policy}){so_far}",
            "streams and the ledgers of queries never expire. Leases do, and so does the ledger of a batch job, which "
            "then fails with a named error",
            "CONFIG SET maxmemory-policy noeviction, if batch jobs write",
        )]  # fmt: skip
    return []


def _used(facts: ServerFacts, limit: int, policy: str) -> list[Finding]:
    used = facts.number("used_memory")
    in_use = f"{size(used)} of {size(limit)} in use"
    if policy.startswith("allkeys"):
        return []
    if used >= limit:
        return [Finding(
            Level.DANGER, _ABOUT, f"{in_use}: the memory is full (maxmemory)",
            "the server refuses new entries, groups and keys (OOM). Queries wait for a minute, and then fail with "
            "RSTREAM_RETRIES_EXHAUSTED",
            "rstream trim --acked lists entries that no group needs any more, and with --yes removes them; or set a "
            "larger maxmemory",
        )]  # fmt: skip
    if used > FULL_SOON * limit:
        return [Finding(
            Level.WARNING, _ABOUT, in_use,
            "when it is full (OOM), queries wait for a minute; they fail if there is no free memory by then",
            "set a larger maxmemory; trim entries that all groups have read (trim=acked, onCommit)",
        )]  # fmt: skip
    return [] if policy.startswith("volatile") else [Finding(Level.OK, _ABOUT, f"{in_use}, noeviction")]
