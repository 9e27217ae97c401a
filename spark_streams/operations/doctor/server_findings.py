"""Findings of one server: version, persistence, memory, replication, clock, limits. Facts in, findings out; pure.

Persistence decides which entries a restart of the server loses, replication which ones a failover loses.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_streams.base.units import binary_size
from spark_streams.connector.admin.streams import url_of_cluster
from spark_streams.connector.wire.connect import OUTPUT, reply_limit_in
from spark_streams.operations.doctor.server_facts import (
    ENGINE,
    Level,
    ServerFacts,
    ServerFinding,
    whole_or_zero,
)

OLDEST = (6, 2)  # the oldest version that scripts/test --servers tests
COUNTS = (7, 0)  # source.group.server_checks
_TRIMMING = {
    True: "XTRIM supports ACKED",
    False: "XTRIM does not support ACKED, so trim=acked computes the position from all groups",
    None: "whether XTRIM supports ACKED is unknown (this user may not run COMMAND DOCS)",
}


def check_kind(facts: ServerFacts) -> Iterator[ServerFinding]:
    """Check the version and the mode."""
    server = f"{facts.kind} {facts.version}".strip()
    if facts.is_older_than(*COUNTS):
        yield ServerFinding(
            Level.DANGER,
            "version",
            f"{server}: streams do not count added entries, and groups do not count read entries",
            "queries that read (readStream) are refused, because lost entries could not be detected. Writing, "
            "spark.read and rstream " + ("work" if not facts.is_older_than(*OLDEST) else "are not tested on it"),
            "use Redis 7 or later, or Valkey",
        )
    else:
        how = _TRIMMING[facts.trims_by_acked]
        yield ServerFinding(Level.OK, "version", f"{server}; groups count read entries; {how}")
    if facts.mode == "cluster" and "+cluster" not in facts.address:
        yield ServerFinding(
            Level.DANGER, "mode", "this is one node of a cluster",
            "for streams and keys of other nodes it replies MOVED, which stops a query",
            f"use the URL of the cluster: {url_of_cluster(facts.address)}",
        )  # fmt: skip


_KEPT = "persistence"
# CONFIG SET writes the append-only file first. With redis.conf alone, a restart finds no such file and begins empty.
_APPEND = "run CONFIG SET appendonly yes first, and then write appendonly yes into redis.conf"
_AFTER_LOSS = (
    "a source that finds an older state fails with a named error (with failOnDataLoss=false it continues and counts "
    "the lost entries). Committed rows of a sink are lost, and the sink does not write them again"
)


def check_persistence(facts: ServerFacts) -> Iterator[ServerFinding]:
    """Check the append-only file, the snapshots, and whether they can be written."""
    if "aof_enabled" not in facts.info:
        return
    files = {"snapshot": "rdb_last_bgsave_status", "append-only file": "aof_last_write_status"}
    if failing := [file for file, name in files.items() if facts.info.get(name, "ok") != "ok"]:
        yield ServerFinding(
            Level.DANGER, _KEPT, f"the last {' and the last '.join(failing)} could not be written",
            "if the server refuses writes because of this (MISCONF), queries wait for a minute, then fail",
            "read the server's log: the usual causes are a full disk, or missing permissions for its folder",
        )  # fmt: skip
    yield _kept(facts)


def _kept(facts: ServerFacts) -> ServerFinding:
    if facts.number("aof_enabled"):
        return _appended(facts)
    if facts.kind == ENGINE:
        return ServerFinding(
            Level.WARNING, _KEPT, "the bundled engine has no persistence: its streams are lost when its process ends",
            "queries then fail with a named error (the group does not exist)",
            "use embedded:///a/folder, or rstream serve --appendonly yes --dir /a/folder",
        )  # fmt: skip
    changes = facts.number("rdb_changes_since_last_save")
    if facts.config.get("save") == "":
        return ServerFinding(
            Level.DANGER, _KEPT, "neither an append-only file nor snapshots: a restart loses all streams",
            _AFTER_LOSS, _APPEND,
        )  # fmt: skip
    return ServerFinding(
        Level.WARNING, _KEPT,
        f"no append-only file: a restart restores the last snapshot, which lacks {changes:,} changes now",
        _AFTER_LOSS, _APPEND,
    )  # fmt: skip


def _appended(facts: ServerFacts) -> ServerFinding:
    fsync = facts.config.get("appendfsync")
    if fsync == "no":
        return ServerFinding(
            Level.WARNING, _KEPT, "the operating system decides when the append-only file is flushed (appendfsync no)",
            f"if the machine fails, about 30 seconds of writes are lost: {_AFTER_LOSS}",
            "CONFIG SET appendfsync everysec, or always, and write it into redis.conf",
        )  # fmt: skip
    if fsync == "everysec":
        return ServerFinding(
            Level.NOTE, _KEPT, "append-only file, flushed once a second",
            "if the machine fails, one or two seconds of writes are lost: a source reports lost entries; rows that a "
            "sink committed in this time are missing",
            "if this loss is not acceptable, CONFIG SET appendfsync always, and write it into redis.conf",
        )  # fmt: skip
    how = "flushed with every write" if fsync == "always" else "the flush interval is not known"
    return ServerFinding(Level.OK, _KEPT, f"append-only file, {how}")


_MEMORY = "memory"
FULL_SOON = 0.85  # of maxmemory, or of the machine


def check_memory(facts: ServerFacts) -> Iterator[ServerFinding]:
    """Check the memory limit, the memory in use, and the eviction policy."""
    if "used_memory" not in facts.info:
        return
    limit, policy = facts.number("maxmemory"), facts.info.get("maxmemory_policy", "noeviction")
    if limit == 0:
        yield _unlimited(facts)
    elif policy.startswith("allkeys"):
        yield ServerFinding(
            Level.DANGER, _MEMORY,
            f"evicts any key when {binary_size(limit)} are full (maxmemory-policy {policy}){_evicted(facts)}",
            "exactly-once sinks, mode DEADLETTER and retryDelay are refused. Other queries run with "
            "a warning, and fail when a stream or a group was evicted",
            "CONFIG SET maxmemory-policy noeviction, and write it into redis.conf",
        )  # fmt: skip
    else:
        yield from _used(facts, limit, policy)


def _unlimited(facts: ServerFacts) -> ServerFinding:
    used, machine = facts.number("used_memory"), facts.number("total_system_memory")
    if machine and used > FULL_SOON * machine:
        return ServerFinding(
            Level.DANGER, _MEMORY,
            f"{binary_size(used)} in use, no maxmemory, and the machine has {binary_size(machine)}",
            "the operating system kills the server when no memory is left",
            "set maxmemory below the machine's memory, and maxmemory-policy noeviction; trim entries that all groups "
            "have read (trim=acked, onCommit)",
        )  # fmt: skip
    return ServerFinding(
        Level.NOTE, _MEMORY, f"{binary_size(used)} in use, no limit (maxmemory 0)",
        "streams grow until the operating system kills the server",
        "set maxmemory, and maxmemory-policy noeviction; trim entries that all groups have read (trim=acked, onCommit)",
    )  # fmt: skip


def _evicted(facts: ServerFacts) -> str:
    dropped = facts.number("evicted_keys")
    return f"; evicted {dropped:,} keys since its start" if dropped else ""


def _used(facts: ServerFacts, limit: int, policy: str) -> Iterator[ServerFinding]:
    """Check a server that evicts no stream."""
    used, evicts = facts.number("used_memory"), policy.startswith("volatile")
    in_use = f"{binary_size(used)} of {binary_size(limit)} in use"
    if evicts:
        yield ServerFinding(
            Level.NOTE, _MEMORY,
            f"evicts keys with a time to live when {binary_size(limit)} are full (maxmemory-policy {policy})"
            f"{_evicted(facts)}",
            "streams and the ledgers of queries never expire. Leases do, and so does the ledger of a batch job, which "
            "then fails with a named error",
            "if batch jobs write, CONFIG SET maxmemory-policy noeviction, and write it into redis.conf",
        )  # fmt: skip
    if used >= limit:
        yield ServerFinding(
            Level.DANGER, _MEMORY, f"{in_use}: the memory is full (maxmemory)",
            "the server refuses new entries, groups and keys (OOM). Queries wait for a minute, and then fail with "
            "RSTREAM_RETRIES_EXHAUSTED",
            "rstream trim --acked lists entries that no group needs any more, and with --yes removes them; or set a "
            "larger maxmemory",
        )  # fmt: skip
    elif used > FULL_SOON * limit:
        yield ServerFinding(
            Level.WARNING, _MEMORY, in_use,
            "when it is full (OOM), queries wait for a minute; they fail if there is no free memory by then",
            "set a larger maxmemory; trim entries that all groups have read (trim=acked, onCommit)",
        )  # fmt: skip
    elif not evicts:
        yield ServerFinding(Level.OK, _MEMORY, f"{in_use}, noeviction")


_REPLICATION = "replication"
BEHIND = 10  # seconds since the last acknowledgement of a replica


def check_replication(facts: ServerFacts) -> Iterator[ServerFinding]:
    """Check whether this is a master, and how many replicas follow it."""
    if facts.role == "replica":
        yield _replica(facts)
        return
    if "connected_slaves" not in facts.info or facts.kind == ENGINE:
        return
    required, in_sync = facts.setting("min-replicas-to-write") or 0, facts.number("min_slaves_good_slaves")
    if in_sync < required:
        yield ServerFinding(
            Level.DANGER, _REPLICATION,
            f"min-replicas-to-write is {required}, and {in_sync} replicas are in sync",
            "it refuses writes (NOREPLICAS): queries wait for a minute, then fail",
            "start the missing replicas",
        )  # fmt: skip
    replicas = _replicas(facts)
    if late := [
        f"{replica.get('ip')}:{replica.get('port')} ({replica.get('state')}, {replica.get('lag')} s)"
        for replica in replicas
        if replica.get("state") != "online" or whole_or_zero(replica.get("lag", "0")) > BEHIND
    ]:
        yield ServerFinding(
            Level.WARNING, _REPLICATION, f"replicas that are behind: {', '.join(late)}",
            "entries that a replica lacks are lost if it becomes the master",
            "read its log; option waitReplicas lets a sink wait for it",
        )  # fmt: skip
    # Without replicas, the finding about min-replicas-to-write or the check of the cluster already reports it.
    if replicas or (in_sync >= required and facts.mode != "cluster"):
        yield _guard(facts, len(replicas))


def _replica(facts: ServerFacts) -> ServerFinding:
    host, port = facts.info.get("master_host", ""), facts.info.get("master_port", "")
    of_master = f" of {host}:{port}" if host else ""
    lost = " that is not connected to it" if facts.info.get("master_link_status") == "down" else ""
    writes, effect = (
        "",
        "it refuses writes (READONLY): queries wait for a minute for it to become the master, then fail",
    )
    if facts.config.get("replica-read-only") == "no":
        writes = ", which accepts writes (replica-read-only no)"
        effect = "queries run, but the next full sync deletes everything that they have written here"
    remedy = f"use the master's address in the URL{of_master.replace(' of', ':')}"
    return ServerFinding(Level.DANGER, _REPLICATION, f"a replica{of_master}{lost}{writes}", effect, remedy)


def _guard(facts: ServerFacts, count: int) -> ServerFinding:
    master = f"a master with {'1 replica' if count == 1 else f'{count} replicas'}"
    if count == 0:
        return ServerFinding(
            Level.NOTE, _REPLICATION, "a master without replicas",
            "if it goes down, queries wait for a minute, then fail; entries that its disk loses are lost",
            "add a replica, so that the streams do not depend on one machine",
        )  # fmt: skip
    required = facts.setting("min-replicas-to-write")
    if required == 0:
        return ServerFinding(
            Level.WARNING, _REPLICATION,
            f"{master}, which accepts writes without a connected replica (min-replicas-to-write 0)",
            "if a replica then takes over, these writes are lost; a source reports the lost entries, a sink the "
            "batches that it was writing",
            "CONFIG SET min-replicas-to-write 1 on master and replicas, and in redis.conf; set the sink's waitReplicas",
        )  # fmt: skip
    requirement = "" if required is None else f", writes need {required}"
    return ServerFinding(Level.OK, _REPLICATION, f"{master}{requirement}")


def _replicas(facts: ServerFacts) -> list[dict[str, str]]:
    """Parse INFO's line of each replica: `slave0:ip=…,port=…,state=online,offset=…,lag=0`."""
    lines = [facts.info[f"slave{n}"] for n in range(facts.number("connected_slaves")) if f"slave{n}" in facts.info]
    return [dict(pair.split("=", 1) for pair in line.split(",") if "=" in pair) for line in lines]


_CLOCK = "clock"
NOTED, WARNED = 1_000, 60_000  # ms


def check_clock(facts: ServerFacts) -> Iterator[ServerFinding]:
    """Compare the clocks. Run it on the driver's machine."""
    if facts.clock is None:
        return
    apart = abs(facts.clock.ahead_ms)
    if apart - facts.clock.uncertain_ms < NOTED:
        yield ServerFinding(Level.OK, _CLOCK, "within a second of this machine's")
        return
    direction = "ahead of" if facts.clock.ahead_ms > 0 else "behind"
    yield ServerFinding(
        Level.WARNING if apart - facts.clock.uncertain_ms >= WARNED else Level.NOTE, _CLOCK,
        f"{apart / 1000:,.0f} s {direction} this machine's",
        "entry IDs, _timestamp, retention and lag use the server's clock, current_timestamp() uses the clocks of "
        "Spark's machines: windows and delays are wrong by this difference. Guarantees of the source and the sink "
        "do not depend on a clock",
        "run NTP on both machines",
    )  # fmt: skip


_LIMITS = "limits"
_ARGUMENT, _REQUEST = 512 << 20, 1 << 30  # bytes: the server's defaults
PAGE, LARGEST_PAGE = 4 << 20, 32 << 20  # bytes of entries that a task requests at once (source.limits)
MANY = 0.85  # of maxclients


def check_limits(facts: ServerFacts) -> Iterator[ServerFinding]:
    """Check for limits that are lower than the server's defaults."""
    findings = list(_low_limits(facts))
    yield from findings
    if facts.config and not findings:
        yield ServerFinding(Level.OK, _LIMITS, "as the server's defaults, or higher")


def _low_limits(facts: ServerFacts) -> Iterator[ServerFinding]:
    argument, request = facts.setting("proto-max-bulk-len"), facts.setting("client-query-buffer-limit")
    if argument is not None and argument < _ARGUMENT:
        yield ServerFinding(
            Level.NOTE, _LIMITS, f"accepts values of up to {binary_size(argument)} (proto-max-bulk-len)",
            "a sink fails with an error that names the row with a larger value",
            "set a larger proto-max-bulk-len, if rows are larger",
        )  # fmt: skip
    if request is not None and request < _REQUEST:
        yield ServerFinding(
            Level.NOTE, _LIMITS, f"accepts requests of up to {binary_size(request)} (client-query-buffer-limit)",
            "a sink sends smaller chunks, if it may run CONFIG GET; it fails with an error that names a larger row",
            "set client-query-buffer-limit 1gb, the server's default",
        )  # fmt: skip
    smallest = reply_limit_in(facts.config.get(OUTPUT, ""))
    if 0 < smallest <= 2 * LARGEST_PAGE:
        stops_all_queries = smallest <= 2 * PAGE
        condition = "with more to read than that" if stops_all_queries else "of large entries"
        yield ServerFinding(
            Level.DANGER if stops_all_queries else Level.WARNING,
            _LIMITS,
            f"closes connections with {binary_size(smallest)} of unread replies ({OUTPUT} normal)",
            f"tasks read {binary_size(PAGE)} of entries at once, more if entries are large: a query {condition} loses "
            "its connection repeatedly, and fails after a minute (RSTREAM_RETRIES_EXHAUSTED)",
            'set client-output-buffer-limit "normal 0 0 0", the server\'s default',
        )
    if seconds := facts.setting("timeout"):
        yield ServerFinding(
            Level.NOTE, _LIMITS, f"closes connections that are idle for {seconds} s (timeout)",
            "queries connect again when they need to", "set timeout 0 to avoid this",
        )  # fmt: skip
    max_clients, clients = facts.setting("maxclients") or facts.number("maxclients"), facts.number("connected_clients")
    if max_clients and clients > MANY * max_clients:
        yield ServerFinding(
            Level.WARNING, _LIMITS, f"{clients:,} of {max_clients:,} clients (maxclients) are connected",
            "a task uses one or two connections; if one is refused, it is retried for a minute, then the query "
            "fails",
            "set a larger maxclients, or use fewer clients",
        )  # fmt: skip
