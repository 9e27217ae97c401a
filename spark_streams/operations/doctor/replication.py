"""Check of masters and replicas: which entries a failover loses. Pure."""

from __future__ import annotations

from spark_streams.operations.doctor.finding import Finding, Level
from spark_streams.operations.doctor.server_facts import ENGINE, ServerFacts, whole_or_zero

_ABOUT = "replication"
BEHIND = 10  # seconds since the last acknowledgement of a replica


def check(facts: ServerFacts) -> list[Finding]:
    """Check whether this is a master, and how many replicas follow it."""
    if facts.is_replica:
        return [_replica(facts)]
    if "connected_slaves" not in facts.info or facts.kind == ENGINE:
        return []
    replicas = _replicas(facts)
    too_few = _too_few(facts)
    # Without replicas, the finding about min-replicas-to-write or the check of the cluster already reports it.
    is_reported = not replicas and (bool(too_few) or facts.mode == "cluster")
    return [*too_few, *_behind(replicas), *([] if is_reported else [_guard(facts, len(replicas))])]


def _replica(facts: ServerFacts) -> Finding:
    host, port = facts.info.get("master_host", ""), facts.info.get("master_port", "")
    of_master = f" of {host}:{port}" if host else ""
    lost = " that is not connected to it" if facts.info.get("master_link_status") == "down" else ""
    if facts.config.get("replica-read-only") == "no":
        return Finding(
            Level.DANGER, _ABOUT, f"a replica{of_master}{lost}, which accepts writes (replica-read-only no)",
            "queries run, but the next full sync deletes everything that they have written here",
            f"use the master's address in the URL{of_master.replace(' of', ':')}",
        )  # fmt: skip
    return Finding(
        Level.DANGER, _ABOUT, f"a replica{of_master}{lost}",
        "it refuses writes (READONLY): queries wait for a minute for it to become the master, then fail",
        f"use the master's address in the URL{of_master.replace(' of', ':')}",
    )  # fmt: skip


def _too_few(facts: ServerFacts) -> list[Finding]:
    required = facts.setting("min-replicas-to-write") or 0
    if required == 0 or facts.number("min_slaves_good_slaves") >= required:
        return []
    return [
        Finding(
            Level.DANGER, _ABOUT,
            f"min-replicas-to-write is {required}, and {facts.number('min_slaves_good_slaves')} replicas are in sync",
            "it refuses writes (NOREPLICAS): queries wait for a minute, then fail",
            "start the missing replicas",
        )
    ]  # fmt: skip


def _behind(replicas: list[dict[str, str]]) -> list[Finding]:
    late = [
        replica
        for replica in replicas
        if replica.get("state") != "online" or whole_or_zero(replica.get("lag", "0")) > BEHIND
    ]
    if not late:
        return []
    named = ", ".join(
        f"{replica.get('ip')}:{replica.get('port')} ({replica.get('state')}, {replica.get('lag')} s)"
        for replica in late
    )
    return [
        Finding(
            Level.WARNING, _ABOUT, f"replicas that are behind: {named}",
            "entries that a replica lacks are lost if it becomes the master",
            "read its log; option waitReplicas lets a sink wait for it",
        )
    ]  # fmt: skip


def _guard(facts: ServerFacts, count: int) -> Finding:
    master = f"a master with {'1 replica' if count == 1 else f'{count} replicas'}"
    if count == 0:
        return Finding(
            Level.NOTE, _ABOUT, "a master without replicas",
            "if it goes down, queries wait for a minute, then fail; entries that its disk loses are lost",
            "add a replica, so that the streams do not depend on one machine",
        )  # fmt: skip
    required = facts.setting("min-replicas-to-write")
    if required == 0:
        return Finding(
            Level.WARNING, _ABOUT,
            f"{master}, which accepts writes without a connected replica (min-replicas-to-write 0)",
            "if a replica then takes over, these writes are lost; a source reports the lost entries, a sink the "
            "batches that it was writing",
            "CONFIG SET min-replicas-to-write 1, and set option waitReplicas of the sink",
        )  # fmt: skip
    requirement = "" if required is None else f", writes need {required}"
    return Finding(Level.OK, _ABOUT, f"{master}{requirement}")


def _replicas(facts: ServerFacts) -> list[dict[str, str]]:
    """Parse INFO's line of each replica: `slave0:ip=…,port=…,state=online,offset=…,lag=0`."""
    lines = [facts.info[f"slave{n}"] for n in range(facts.number("connected_slaves")) if f"slave{n}" in facts.info]
    return [dict(pair.split("=", 1) for pair in line.split(",") if "=" in pair) for line in lines]
