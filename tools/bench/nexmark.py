"""P33: Nexmark's queries over Redis Streams, against the same SQL over Spark's file source with the same events."""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import tempfile
from pathlib import Path

import redis

from examples.nexmark.nexmark import Views, file_streams, produce, run, streams
from examples.nexmark.queries import QUERIES, Query
from tools.bench.row import Row
from tools.bench.servers import running
from tools.bench.spark import session

_EVENTS = 1_000_000
_PREFIX = "nexmark"
_CORES = 2  # of the session
_groups = itertools.count()


def nexmark_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return a row for each query."""
    server = stack.enter_context(running("redis-server"))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    with redis.Redis(port=server.port) as client:
        produce(client, _PREFIX, folder / "events", _EVENTS)
    for name, value in (("spark.sql.shuffle.partitions", _CORES), ("spark.sql.session.timeZone", "UTC")):
        session().conf.set(name, value)
        stack.callback(session().conf.unset, name)
    return [
        Row(
            "P33",
            f"Nexmark {name}: {query.title}",
            f"{_EVENTS:,} events, availableNow, into Parquet; events a second a core; peer: files of JSON",
            "/s",
            None,
            functools.partial(_streams, query, server.url, folder),
            functools.partial(_rate, query, file_streams(session(), folder / "events"), folder),
            "Spark's files",
        )
        for name, query in QUERIES.items()
    ]


def _streams(query: Query, url: str, folder: Path) -> float:
    return _rate(query, streams(session(), url, _PREFIX, query, f"g{next(_groups)}"), folder)


def _rate(query: Query, views: Views, folder: Path) -> float:
    """Return the events a second a core."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    rate = _EVENTS / run(session(), query, views, out) / _CORES
    # Spark keeps the state of an ended query for a minute, in the memory that the next one needs.
    session()._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
    return rate
