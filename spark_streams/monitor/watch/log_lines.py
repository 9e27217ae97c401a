"""Log lines: one JSON object for everything that happens to a query, written by the listener, read by `rstream report`.

{"at": "2026-11-20T08:37:31.814Z", "event": "progress", "query": "billing", "id": "…", "run": "…",
 "batch": 7, "began": "2026-11-20T08:37:31.181Z", "batch_ms": 633, "rows": 50000, "rows_per_second": 79000.0,
 "groups": [{"stream": "orders", "group": "billing", "consumer": "spark", "entries": 50000,
             "position": "1795163834542-1", "lost": 0, "claimed": 0, "dead": 0, "bad": {"amount": 667},
             "lag": 1200, "lag_ms": 850, "pending": 50000, "oldest_idle_ms": 640}]}

event: started, progress, idle, terminated (that one with "error" and "message" where the query has failed)
where entries are tried again: "retried" (of this run so far), "waiting" and "due" (when the next one comes back, in
milliseconds since the epoch), as of the trigger
lost, claimed, dead, bad (per column, its values that did not fit): of this run so far; lag, lag_ms, pending,
oldest_idle_ms (monitor.lag_survey): of the whole group, null where the server does not answer or has no such group. A
lag that was counted only so far has "lag_at_least".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol

from spark_streams.errors import ConfigError
from spark_streams.model.printable import json_text
from spark_streams.model.untyped import Json
from spark_streams.monitor.lag_survey import GroupStanding
from spark_streams.monitor.watch.progress import Progress, SourceProgress


class Writer(Protocol):
    """Where lines go."""

    def __call__(self, line: str) -> None: ...


def progress_line(at: str, progress: Progress, standings: Mapping[tuple[str, str], GroupStanding]) -> dict[str, object]:
    """For a micro-batch. at: now, when the groups were looked at."""
    return {
        "at": at,
        "event": "progress",
        "query": progress.query,
        "id": progress.id,
        "run": progress.run,
        "batch": progress.batch,
        "began": progress.began,
        "batch_ms": progress.batch_ms,
        "rows": progress.rows,
        "rows_per_second": round(progress.rows_per_second, 1),
        "groups": groups(progress.sources, standings, entries=True),
    }


def event_line(at: str, event: str, query: str, query_id: str, run: str, **more: object) -> dict[str, object]:
    """For everything else."""
    return {"at": at, "event": event, "query": query, "id": query_id, "run": run, **more}


def groups(
    sources: tuple[SourceProgress, ...], standings: Mapping[tuple[str, str], GroupStanding], entries: bool
) -> list[dict[str, object]]:
    """Each stream of each source. entries: with what the batch took."""
    found = []
    for source in sources:
        for one in source.streams:
            told: dict[str, object] = {"stream": one.stream, "group": source.group, "consumer": source.consumer}
            if entries:
                told["entries"] = one.entries
            told |= {"position": one.position, "lost": one.lost, "claimed": one.claimed, "dead": one.dead}
            told["bad"] = dict(one.bad)
            if one.retried or one.waiting:
                told |= {"retried": one.retried, "waiting": one.waiting, "due": one.due}
            standing = standings.get((one.stream, source.group))
            for name in ("lag", "lag_ms", "pending", "oldest_idle_ms"):
                told[name] = None if standing is None else getattr(standing, name)
            if standing is not None and standing.at_least:
                told["lag_at_least"] = True
            found.append(told)
    return found


class File:
    """Appends to a file, or to standard error; each line whole, also where several processes write."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[str] = sys.stderr if path is None else path.open("a", encoding="utf-8", buffering=1)

    def __call__(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()


def text(line: Mapping[str, object]) -> str:
    """One line, without its end."""
    return json_text(line, separators=(", ", ": "))


def read_lines(file: IO[str]) -> Iterator[dict[str, Json]]:
    """The lines of a log; text of other programs between them is passed over. Raises ConfigError where none is ours."""
    seen = False
    for line in file:
        at = line.find('{"at": ')
        if at < 0:
            continue
        try:
            value = json.loads(line[at:])
        except ValueError:
            continue  # the last line of a process that was killed, or somebody else's
        if isinstance(value, dict) and "event" in value:
            seen = True
            yield value
    if not seen:
        raise ConfigError(f"{file.name} holds no line of the query listener; write one with spark_streams.watch(…)")
