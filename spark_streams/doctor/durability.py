"""What is left of the streams when the server starts again. Pure."""

from __future__ import annotations

from spark_streams.doctor.finding import Finding, Level
from spark_streams.doctor.server_facts import ENGINE, ServerFacts

_ABOUT = "persistence"
# With the file alone a restart looks for an append-only file, finds none, and begins empty.
_APPEND = "CONFIG SET appendonly yes; when that is done, appendonly yes in redis.conf"
_AFTER_LOSS = (
    "a source that finds an older state stops with a named error (failOnDataLoss=false: goes on, and counts what is "
    "lost); what a sink had written and closed is missing, and nobody writes it again"
)


def look(facts: ServerFacts) -> list[Finding]:
    """The append-only file, snapshots, and whether they can be written."""
    if "aof_enabled" not in facts.info:
        return []
    return [*_failing(facts), _kept(facts)]


def _kept(facts: ServerFacts) -> Finding:
    if facts.number("aof_enabled"):
        return _appended(facts)
    if facts.kind == ENGINE:
        return Finding(
            Level.WARNING, _ABOUT, "the bundled engine keeps nothing here: with its process the streams go",
            "queries stop then with a named error (group gone)",
            "embedded:///a/folder, or rstream serve --appendonly yes --dir /a/folder",
        )  # fmt: skip
    changes = facts.number("rdb_changes_since_last_save")
    if facts.config.get("save") == "":
        return Finding(
            Level.DANGER, _ABOUT, "neither an append-only file nor snapshots: after a restart the streams are gone",
            _AFTER_LOSS, _APPEND,
        )  # fmt: skip
    return Finding(
        Level.WARNING, _ABOUT,
        f"no append-only file: a restart goes back to the last snapshot, which lacks {changes:,} changes by now",
        _AFTER_LOSS, _APPEND,
    )  # fmt: skip


def _appended(facts: ServerFacts) -> Finding:
    fsync = facts.config.get("appendfsync")
    if fsync == "no":
        return Finding(
            Level.WARNING, _ABOUT, "the append-only file is flushed when the system likes (appendfsync no)",
            f"if the machine dies some half a minute is lost: {_AFTER_LOSS}", "appendfsync everysec, or always",
        )  # fmt: skip
    if fsync == "everysec":
        return Finding(
            Level.NOTE, _ABOUT, "append-only file, flushed once a second",
            "if the machine dies a second or two is lost: a source says so; rows of a batch that was closed in that "
            "time are missing",
            "appendfsync always, where that is too much",
        )  # fmt: skip
    how = "flushed with every write" if fsync == "always" else "how often it is flushed is not told"
    return Finding(Level.OK, _ABOUT, f"append-only file, {how}")


def _failing(facts: ServerFacts) -> list[Finding]:
    failing = [
        what
        for what, name in (("snapshot", "rdb_last_bgsave_status"), ("append-only file", "aof_last_write_status"))
        if facts.info.get(name, "ok") != "ok"
    ]
    if not failing:
        return []
    return [
        Finding(
            Level.DANGER, _ABOUT, f"the last {' and the last '.join(failing)} could not be written",
            "where the server refuses writes for that (MISCONF), queries wait for a minute, then they fail",
            "see the server's log: a full disk, most likely, or the rights of its folder",
        )
    ]  # fmt: skip
