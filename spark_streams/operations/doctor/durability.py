"""Check of the persistence: which entries a restart of the server loses. Pure."""

from __future__ import annotations

from spark_streams.operations.doctor.finding import Finding, Level
from spark_streams.operations.doctor.server_facts import ENGINE, ServerFacts

_ABOUT = "persistence"
# CONFIG SET writes the append-only file first. With redis.conf alone, a restart finds no such file and begins empty.
_APPEND = "run CONFIG SET appendonly yes first, and then write appendonly yes into redis.conf"
_AFTER_LOSS = (
    "a source that finds an older state fails with a named error (with failOnDataLoss=false it continues and counts "
    "the lost entries). Committed rows of a sink are lost, and the sink does not write them again"
)


def check(facts: ServerFacts) -> list[Finding]:
    """Check the append-only file, the snapshots, and whether they can be written."""
    if "aof_enabled" not in facts.info:
        return []
    return [*_failing(facts), _kept(facts)]


def _kept(facts: ServerFacts) -> Finding:
    if facts.number("aof_enabled"):
        return _appended(facts)
    if facts.kind == ENGINE:
        return Finding(
            Level.WARNING, _ABOUT, "the bundled engine has no persistence: its streams are lost when its process ends",
            "queries then fail with a named error (the group does not exist)",
            "use embedded:///a/folder, or rstream serve --appendonly yes --dir /a/folder",
        )  # fmt: skip
    changes = facts.number("rdb_changes_since_last_save")
    if facts.config.get("save") == "":
        return Finding(
            Level.DANGER, _ABOUT, "neither an append-only file nor snapshots: a restart loses all streams",
            _AFTER_LOSS, _APPEND,
        )  # fmt: skip
    return Finding(
        Level.WARNING, _ABOUT,
        f"no append-only file: a restart restores the last snapshot, which lacks {changes:,} changes now",
        _AFTER_LOSS, _APPEND,
    )  # fmt: skip


def _appended(facts: ServerFacts) -> Finding:
    fsync = facts.config.get("appendfsync")
    if fsync == "no":
        return Finding(
            Level.WARNING, _ABOUT, "the operating system decides when the append-only file is flushed (appendfsync no)",
            f"if the machine fails, about 30 seconds of writes are lost: {_AFTER_LOSS}",
            "CONFIG SET appendfsync everysec, or always",
        )  # fmt: skip
    if fsync == "everysec":
        return Finding(
            Level.NOTE, _ABOUT, "append-only file, flushed once a second",
            "if the machine fails, one or two seconds of writes are lost: a source reports lost entries; rows that a "
            "sink committed in this time are missing",
            "CONFIG SET appendfsync always, if this loss is not acceptable",
        )  # fmt: skip
    how = "flushed with every write" if fsync == "always" else "the flush interval is not known"
    return Finding(Level.OK, _ABOUT, f"append-only file, {how}")


def _failing(facts: ServerFacts) -> list[Finding]:
    failing = [
        file
        for file, name in (("snapshot", "rdb_last_bgsave_status"), ("append-only file", "aof_last_write_status"))
        if facts.info.get(name, "ok") != "ok"
    ]
    if not failing:
        return []
    return [
        Finding(
            Level.DANGER, _ABOUT, f"the last {' and the last '.join(failing)} could not be written",
            "if the server refuses writes because of this (MISCONF), queries wait for a minute, then fail",
            "read the server's log: the usual causes are a full disk, or missing permissions for its folder",
        )
    ]  # fmt: skip
