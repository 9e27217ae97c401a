"""Log lines: one JSON object for each event of a query, written by the listener and read by `rstream console`.

{"at": "2026-11-20T08:37:31.814Z", "event": "progress", "query": "billing", "id": "…", "run": "…",
 "batch": 7, "began": "2026-11-20T08:37:31.181Z", "batch_ms": 633, "rows": 50000, "rows_per_second": 79000.0,
 "groups": [{"stream": "orders", "group": "billing", "consumer": "spark", "entries": 50000,
             "position": "1795163834542-1", "lost": 0, "claimed": 0, "dead": 0, "bad": {"amount": 667},
             "lag": 1200, "lag_ms": 850, "pending": 50000, "oldest_idle_ms": 640}]}

event: started, progress, idle, terminated (with "error" and "message" if the query has failed)
lost, claimed, dead, bad (by column), retried (only above 0): the counters of connector.counters, of this run so far
lag, lag_ms, pending, oldest_idle_ms (lag.survey): of the whole group; null if the server does not answer or the
group does not exist. If the lag was counted only up to a limit, there is "lag_at_least".
waiting, due: only if entries wait for a retry, as of the trigger: their number, and when the next one is returned, in
milliseconds since the epoch
limit: only with targetBatchTime: most entries of the batch, of all streams of the group
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from spark_streams.base import given_text
from spark_streams.base.printable import json_text
from spark_streams.base.untyped import Json
from spark_streams.connector import counters
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.lag.survey import GroupLag
from spark_streams.connector.watch.progress import Progress, SourceProgress

LONGEST = 8 << 20  # characters of a line; 10,000 streams take 3 MB


def progress_line(timestamp: str, progress: Progress, lags: Mapping[tuple[str, str], GroupLag]) -> dict[str, object]:
    """Return the line of a micro-batch. timestamp: when the lags were read."""
    return event_line(
        *(timestamp, "progress", progress.query, progress.id, progress.run),
        batch=progress.batch,
        began=progress.began,
        batch_ms=progress.batch_ms,
        rows=progress.rows,
        rows_per_second=round(progress.rows_per_second, 1),
        groups=groups(progress.sources, lags, entries=True),
    )


def event_line(timestamp: str, event: str, query: str, query_id: str, run: str, **more: object) -> dict[str, object]:
    """Return the line of any other event."""
    return {"at": timestamp, "event": event, "query": query, "id": query_id, "run": run, **more}


def groups(
    sources: tuple[SourceProgress, ...], lags: Mapping[tuple[str, str], GroupLag], entries: bool
) -> list[dict[str, object]]:
    """Return an object for each stream of each source. entries: with the number of entries of the batch."""
    lines = []
    for source in sources:
        for stream in source.streams:
            line: dict[str, object] = {"stream": stream.stream, "group": source.group, "consumer": source.consumer}
            if entries:
                line["entries"] = stream.entries
                if source.limit is not None:
                    line["limit"] = source.limit
            line |= {"position": stream.position, **stream.counts.to_json()}
            if stream.waiting:
                line |= {"waiting": stream.waiting, "due": stream.due}
            group_lag = lags.get((stream.stream, source.group))
            for name in ("lag", "lag_ms", "pending", "oldest_idle_ms"):
                line[name] = None if group_lag is None else getattr(group_lag, name)
            if group_lag is not None and group_lag.at_least:
                line["lag_at_least"] = True
            lines.append(line)
    return lines


class LogFile:
    """Appends lines to a file, or to standard error. Lines of several processes are not mixed."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[str] = sys.stderr if path is None else path.open("a", encoding="utf-8", buffering=1)

    def __call__(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()


def text(line: Mapping[str, object]) -> str:
    """Return a line as text, without a line break."""
    return json_text(line, separators=(", ", ": "))


def read_lines(file: IO[str]) -> Iterator[dict[str, Json]]:
    """Yield the lines of a log. Text of other programs is skipped, also a line that is longer than LONGEST, lacks a
    value or has a text before it. Raises ConfigError if there is no line of ours."""
    seen = False
    for line in _short_lines(file):
        if not line.startswith('{"at": '):
            continue  # also a line that only ends like ours: another program may quote what a stranger has written
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue  # an incomplete line of a killed process, or another program's
        if _is_line(value):
            seen = True
            yield value
    if not seen:
        raise ConfigError(f"{file.name} holds no line of the query listener; write a log with spark_streams.watch(…)")


def _short_lines(file: IO[str]) -> Iterator[str]:
    """Yield the lines that are not longer than LONGEST, without ever holding a longer one."""
    while line := file.readline(LONGEST + 1):
        if len(line) <= LONGEST:
            yield line
            continue
        while line and not line.endswith("\n"):
            line = file.readline(LONGEST)


# -- the shape of a line ----------------------------------------------------------------------------------------------


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_HIGHEST < value < _HIGHEST


def _is_time(value: Json) -> bool:
    try:
        return isinstance(value, str) and given_text.moment(value) >= 0
    except ValueError:
        return False


def _are_groups(value: Json) -> bool:
    """Whether it is a list of groups. An older log lacks newer counters."""
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and _has(one, _OF_GROUP)
        and all(_OF_COUNTER[counter.unit](one[counter.name]) for counter in counters.TABLE if counter.name in one)
        for one in value
    )


Shape = Mapping[str, Callable[[Json], bool]]  # by the name of a value
_HIGHEST = 2**63
_OF_EVENT: Shape = {"at": _is_time, "event": _is_text, "query": _is_text, "run": _is_text}
_OF_PROGRESS: Shape = {**dict.fromkeys(("rows", "batch_ms", "rows_per_second"), _is_number), "groups": _are_groups}
_OF_FAILURE: Shape = {"error": _is_text, "message": _is_text}
_OF_COUNTER: Shape = {  # by the unit of a counter
    "entries": _is_number,
    "values": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
}
_OF_GROUP: Shape = {
    **dict.fromkeys(("stream", "group", "position"), _is_text),
    **dict.fromkeys(("lag", "lag_ms", "pending", "oldest_idle_ms"), lambda value: value is None or _is_number(value)),
}
_OPTIONAL: Shape = {"groups": _are_groups}


def _has(value: Mapping[str, Json], shape: Shape) -> bool:
    """Whether the object has all these values, and no value that is optional and of another type."""
    return all(name in value and fits(value[name]) for name, fits in shape.items()) and all(
        fits(value[name]) for name, fits in _OPTIONAL.items() if name in value
    )


def _is_line(value: Json) -> bool:
    if not isinstance(value, dict) or not _has(value, _OF_EVENT):
        return False
    if value["event"] == "progress":
        return _has(value, _OF_PROGRESS)
    return "error" not in value or _has(value, _OF_FAILURE)
