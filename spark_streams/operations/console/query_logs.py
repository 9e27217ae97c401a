"""What the logs of queries say (spark_streams.watch), and the page Queries."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.base import given_text
from spark_streams.base.untyped import Json
from spark_streams.connector.counters import Counts
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.watch.log_lines import read_lines
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.charts import Chart, GroupPoint, Point, charts_of, lag_charts
from spark_streams.operations.console.site import Site
from spark_streams.operations.monitor.rates import Key


class Failure(NamedTuple):
    """A run of a query that ended with an error."""

    time: str  # of its line
    error: str  # condition or class
    message: str
    query: str  # its name


@dataclass
class LoggedQuery:
    """One query over the time of its logs."""

    name: str
    batches: int = 0
    rows: int = 0
    longest_ms: int = 0  # of a batch
    failures: list[Failure] = field(default_factory=list)
    by_run: dict[tuple[str, Key], Counts] = field(default_factory=dict)  # a line has the counts of its run so far

    @property
    def counts(self) -> Counts:
        """The counts of all runs."""
        return sum(self.by_run.values(), Counts())


class QueryLogs:
    """Queries and groups, from lines of logs in any order. began, ended: milliseconds since the epoch; 0: no line."""

    def __init__(self) -> None:
        self.began = self.ended = 0
        self._queries: dict[str, LoggedQuery] = {}
        self._groups: defaultdict[Key, list[GroupPoint]] = defaultdict(list)
        self._speeds: defaultdict[str, list[Point]] = defaultdict(list)
        self._took: defaultdict[str, list[Point]] = defaultdict(list)

    def add(self, line: Mapping[str, Json]) -> None:
        """Add a line."""
        at_ms = given_text.moment(line["at"])
        self.began, self.ended = min(self.began or at_ms, at_ms), max(self.ended, at_ms)
        name = line["query"]
        query = self._queries.setdefault(name, LoggedQuery(name))
        if line["event"] == "terminated" and "error" in line:
            query.failures.append(Failure(line["at"], line["error"], line["message"], name))
        for group in line.get("groups", ()):
            key = group["stream"], group["group"]
            self._groups[key].append((at_ms, group["lag"], group["lag_ms"]))
            query.by_run[line["run"], key] = Counts.read(group)
        if line["event"] == "progress":
            query.batches += 1
            query.rows += line["rows"]
            query.longest_ms = max(query.longest_ms, line["batch_ms"])
            self._speeds[name].append((at_ms, line["rows_per_second"]))
            self._took[name].append((at_ms, line["batch_ms"]))

    @property
    def queries(self) -> list[LoggedQuery]:
        """The queries, by name."""
        return [self._queries[name] for name in sorted(self._queries)]

    @property
    def failures(self) -> list[Failure]:
        """The failed runs of all queries, the oldest first."""
        return sorted(failure for query in self.queries for failure in query.failures)

    def charts(self) -> list[Chart]:
        """Return charts of the groups' lags, and of the batches."""
        return [
            *lag_charts(self._groups),
            *charts_of(
                ("Rows per second, batch by batch", "per second", self._speeds), ("Batch time", "ms", self._took)
            ),
        ]


_BYTES = 16 << 20  # of the end of a log


async def queries(site: Site, request: Request) -> Response:
    """Return the page."""
    logged, problems = await site.in_thread(request, lambda: _read(site.logs, site.allowed))
    return await site.page(
        request,
        "queries.html",
        title="Queries",
        logged=logged,
        problems=problems,
        logs=[str(path) for path in site.logs],
    )


def _read(logs: Sequence[Path], allowed: AllowList) -> tuple[QueryLogs, list[str]]:
    """Return what the ends of all logs say, and why logs cannot be read."""
    logged, problems = QueryLogs(), []
    for path in logs:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _BYTES))
                for line in read_lines(file):
                    line["message"] = allowed.text(str(line.get("message", "")))
                    if "error" in line:
                        line["error"] = allowed.condition(str(line["error"]))
                    logged.add(line)
        except OSError as error:
            problems.append(f"the log {path} cannot be read: {error.strerror}")
        except ConfigError as error:
            problems.append(f"{path}: {error.message}")
    return logged, problems
