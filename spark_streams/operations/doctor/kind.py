"""Check of the server's kind, version and mode, and of the commands that it refuses. Pure."""

from __future__ import annotations

from spark_streams.connector.admin.streams import url_of_cluster
from spark_streams.operations.doctor.finding import Finding, Level
from spark_streams.operations.doctor.server_facts import ServerFacts

OLDEST = (6, 2)  # the oldest version that scripts/test --servers tests
COUNTS = (7, 0)  # source.group.begin
_TRIMMING = {
    True: "XTRIM supports ACKED",
    False: "XTRIM does not support ACKED, so trim=acked computes the position from all groups",
    None: "whether XTRIM supports ACKED is unknown (this user may not run COMMAND DOCS)",
}


def check(facts: ServerFacts) -> list[Finding]:
    """Check the version, the mode, and the refused commands."""
    return [_version(facts), *_mode(facts), *_refused(facts)]


def _version(facts: ServerFacts) -> Finding:
    server = f"{facts.kind} {facts.version}".strip()
    if facts.is_older_than(*COUNTS):
        return Finding(
            Level.DANGER,
            "version",
            f"{server}: streams do not count added entries, and groups do not count read entries",
            "queries that read (readStream) are refused, because lost entries could not be detected. Writing, "
            "spark.read and rstream " + ("work" if not facts.is_older_than(*OLDEST) else "are not tested on it"),
            "use Redis 7 or later, or Valkey",
        )
    how = _TRIMMING[facts.trims_by_acked]
    return Finding(Level.OK, "version", f"{server}; groups count read entries; {how}")


def _mode(facts: ServerFacts) -> list[Finding]:
    if facts.mode == "cluster" and "+cluster" not in facts.address:
        return [
            Finding(
                Level.DANGER, "mode", "this is one node of a cluster",
                "for streams and keys of other nodes it replies MOVED, which stops a query",
                f"use the URL of the cluster: {url_of_cluster(facts.address)}",
            )
        ]  # fmt: skip
    return []


def _refused(facts: ServerFacts) -> list[Finding]:
    if not facts.refused:
        return []
    unknown = {"INFO": "memory, persistence and replicas", "CONFIG": "limits and flush intervals"}
    unwarned = "; a query does not warn if the server evicts keys" if "INFO" in facts.refused else ""
    return [
        Finding(
            Level.NOTE,
            "asking",
            f"{facts.user or 'this user'} may not run {' and '.join(facts.refused)}",
            f"{', '.join(unknown[name] for name in facts.refused)} cannot be checked{unwarned}",
            "run rstream doctor again with the URL of an administrator",
        )
    ]
