"""Which server it is, in which mode, and whether it may be asked at all. Pure."""

from __future__ import annotations

from spark_streams.doctor.finding import Finding, Level
from spark_streams.doctor.server_facts import ServerFacts

OLDEST = (6, 2)  # what scripts/test --servers begins with
COUNTS = (7, 0)  # source.group.counting_server
_TRIMMING = {
    True: "trims by ACKED itself",
    False: "trim=acked is worked out from all groups",
    None: "whether XTRIM knows ACKED is not known (this user may not run COMMAND DOCS)",
}


def look(facts: ServerFacts) -> list[Finding]:
    """Version, mode, and what could not be asked."""
    return [_version(facts), *_mode(facts), *_refused(facts)]


def _version(facts: ServerFacts) -> Finding:
    said = f"{facts.kind} {facts.version}".strip()
    if facts.is_older_than(*COUNTS):
        return Finding(
            Level.DANGER,
            "version",
            f"{said}: its streams do not count what they were given, nor groups what they have read",
            "queries that read (readStream) are refused: losses could not be told. Writing, spark.read and rstream "
            + ("work" if not facts.is_older_than(*OLDEST) else "are not tested on it"),
            "a server from Redis 7 on, or any Valkey",
        )
    how = _TRIMMING[facts.trims_by_acked]
    return Finding(Level.OK, "version", f"{said}; groups count what they read, {how}")


def _mode(facts: ServerFacts) -> list[Finding]:
    if facts.mode == "cluster" and "+cluster" not in facts.address:
        return [
            Finding(
                Level.DANGER, "mode", "this is one node of a cluster",
                "streams and keys of other nodes are answered with MOVED, which stops a query",
                f"the address of the cluster as a whole: {_of_cluster(facts.address)}",
            )
        ]  # fmt: skip
    return []


def _of_cluster(address: str) -> str:
    """The url that names the node as one of its cluster."""
    head, question, rest = address.replace("://", "+cluster://", 1).partition("?")
    return head.removesuffix("/0") + question + rest


def _refused(facts: ServerFacts) -> list[Finding]:
    if not facts.refused:
        return []
    unknown = {"INFO": "memory, persistence and replicas", "CONFIG": "limits and how often files are flushed"}
    untold = "; a query is not told of a server that drops keys" if "INFO" in facts.refused else ""
    return [
        Finding(
            Level.NOTE,
            "asking",
            f"{facts.user or 'this user'} may not run {' and '.join(facts.refused)}",
            f"{', '.join(unknown[name] for name in facts.refused)} are not known here{untold}",
            "run this once more with an administrator's url",
        )
    ]
