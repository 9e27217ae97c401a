"""Queries: what their logs say (spark_streams.watch)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.watch.log_lines import read_lines
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.charts.query_logs import QueryLogs
from spark_streams.operations.console.site import Site

_BYTES = 16 << 20  # of the end of a log


async def queries(site: Site, request: Request) -> Response:
    """Return the page."""
    logged, problems = await asyncio.to_thread(_read, site.logs, site.allowed)
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
