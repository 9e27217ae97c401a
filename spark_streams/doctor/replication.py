"""Masters and replicas: what is lost when one takes the other's place. Pure."""

from __future__ import annotations

from spark_streams.doctor.finding import Finding, Level
from spark_streams.doctor.server_facts import ENGINE, ServerFacts, whole_or_zero

_ABOUT = "replication"
BEHIND = 10  # seconds since a replica last spoke


def look(facts: ServerFacts) -> list[Finding]:
    """Whether this is a master, and how many replicas have what it has."""
    if facts.is_replica:
        return [_replica(facts)]
    if "connected_slaves" not in facts.info or facts.kind == ENGINE:
        return []
    replicas = _replicas(facts)
    too_few = _too_few(facts)
    # Without replicas, the finding about min-replicas-to-write or the check of the cluster says so.
    is_said = not replicas and (bool(too_few) or facts.mode == "cluster")
    return [*too_few, *_behind(replicas), *([] if is_said else [_guard(facts, len(replicas))])]


def _replica(facts: ServerFacts) -> Finding:
    host, port = facts.info.get("master_host", ""), facts.info.get("master_port", "")
    where = f" of {host}:{port}" if host else ""
    lost = " that is not connected to it" if facts.info.get("master_link_status") == "down" else ""
    if facts.config.get("replica-read-only") == "no":
        return Finding(
            Level.DANGER, _ABOUT, f"a replica{where}{lost}, which takes writes (replica-read-only no)",
            "what is written here is gone with its next full sync: queries run, and lose it",
            f"the master's address in the url{where.replace(' of', ':')}",
        )  # fmt: skip
    return Finding(
        Level.DANGER, _ABOUT, f"a replica{where}{lost}",
        "it refuses writes (READONLY): queries wait for a minute for it to become the master, then they fail",
        f"the master's address in the url{where.replace(' of', ':')}",
    )  # fmt: skip


def _too_few(facts: ServerFacts) -> list[Finding]:
    wanted = facts.setting("min-replicas-to-write") or 0
    if wanted == 0 or facts.number("min_slaves_good_slaves") >= wanted:
        return []
    return [
        Finding(
            Level.DANGER, _ABOUT,
            f"min-replicas-to-write is {wanted}, and {facts.number('min_slaves_good_slaves')} keep up",
            "it refuses writes (NOREPLICAS): queries wait for a minute, then they fail",
            "bring a replica back",
        )
    ]  # fmt: skip


def _behind(replicas: list[dict[str, str]]) -> list[Finding]:
    late = [one for one in replicas if one.get("state") != "online" or whole_or_zero(one.get("lag", "0")) > BEHIND]
    if not late:
        return []
    named = ", ".join(f"{one.get('ip')}:{one.get('port')} ({one.get('state')}, {one.get('lag')} s)" for one in late)
    return [
        Finding(
            Level.WARNING, _ABOUT, f"not every replica keeps up: {named}",
            "what it lacks is lost where it becomes the master", "see its log; waitReplicas lets a sink wait for it",
        )
    ]  # fmt: skip


def _guard(facts: ServerFacts, count: int) -> Finding:
    who = f"a master with {'1 replica' if count == 1 else f'{count} replicas'}"
    if count == 0:
        return Finding(
            Level.NOTE, _ABOUT, "a master without replicas",
            "while it is away queries wait for a minute and fail; what its disk loses is lost",
            "a replica, where the streams are not to go with one machine",
        )  # fmt: skip
    wanted = facts.setting("min-replicas-to-write")
    if wanted == 0:
        return Finding(
            Level.WARNING, _ABOUT, f"{who}, which takes writes also when it is cut off (min-replicas-to-write 0)",
            "where a replica takes over then, those are lost; a source names what is missing, a sink the batches that "
            "it was writing",
            "min-replicas-to-write 1, and option waitReplicas of the sink",
        )  # fmt: skip
    how = "" if wanted is None else f", writes need {wanted}"
    return Finding(Level.OK, _ABOUT, f"{who}{how}")


def _replicas(facts: ServerFacts) -> list[dict[str, str]]:
    """What INFO says of each: `slave0:ip=…,port=…,state=online,offset=…,lag=0`."""
    lines = [facts.info[f"slave{n}"] for n in range(facts.number("connected_slaves")) if f"slave{n}" in facts.info]
    return [dict(pair.split("=", 1) for pair in line.split(",") if "=" in pair) for line in lines]
