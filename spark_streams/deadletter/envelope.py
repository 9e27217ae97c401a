"""The envelope of a dead letter: the original entry's fields untouched, and these beside them.

    dl.stream, dl.id            where the entry stood
    dl.group, dl.consumer       who read it
    dl.query, dl.batch          the query and the micro-batch that gave it up
    dl.stage, dl.reason         which step, and why
    dl.first-failed, dl.last-failed   when, ISO-8601 UTC
    dl.redrives                 how often it was sent back before: 0

Pure: names and SQL expressions over the source's metadata columns, no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

PREFIX = "dl."


@dataclass(frozen=True)
class Origin:
    """Which query gives entries up. query and batch are known once a batch runs."""

    group: str
    consumer: str
    stage: str
    query: str = ""
    batch: int = 0

    def of_batch(self, query: str, batch: int) -> Origin:
        """The same query at one micro-batch."""
        return replace(self, query=query, batch=batch)


def envelope(origin: Origin) -> dict[str, str]:
    """Field name → SQL expression over `_stream`, `_id` and `_reason`."""
    now = "date_format(current_timestamp(), \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\")"
    return {
        f"{PREFIX}stream": "_stream",
        f"{PREFIX}id": "_id",
        f"{PREFIX}group": _text(origin.group),
        f"{PREFIX}consumer": _text(origin.consumer),
        f"{PREFIX}query": _text(origin.query),
        f"{PREFIX}batch": str(origin.batch),
        f"{PREFIX}stage": _text(origin.stage),
        f"{PREFIX}reason": "_reason",
        f"{PREFIX}first-failed": now,
        f"{PREFIX}last-failed": now,
        f"{PREFIX}redrives": "0",
    }


def _text(value: str) -> str:
    """A SQL string literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
