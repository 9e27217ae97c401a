"""P33: Nexmark's queries over Redis Streams, against the same SQL over the same events in Spark's file source, and in a
Python source that has their rows in an Arrow file: it shows what a Python source costs without a server.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import redis
from pyspark.sql import DataFrame

from examples.nexmark.events import SCHEMAS
from examples.nexmark.nexmark import Views, columns, file_streams, produce, run, streams, tables
from examples.nexmark.queries import QUERIES, Query
from tools.bench.own_source import OwnSource
from tools.bench.row import Row
from tools.bench.servers import running
from tools.bench.spark import session

_EVENTS = 1_000_000
_PREFIX = "nexmark"
_CORES = 2  # of the session
# Options: a file source has no pending list either.
_READ: tuple[Mapping[str, str], ...] = ({}, {"noAck": "true"})
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
    arrow = _arrow_files(folder)
    rows = []
    for name, query in QUERIES.items():
        measure = f"Nexmark {name}: {query.title}"
        ran = f"{_EVENTS:,} events, availableNow, into Parquet; events a second a core; peer: "
        files = functools.partial(_rate, query, file_streams(session(), folder / "events"), folder)
        python = functools.partial(_rate, query, _arrow_streams(arrow, query), folder)
        acknowledged, no_ack = (functools.partial(_streams, query, server.url, folder, options) for options in _READ)
        rows += [
            Row("P33", measure, f"{ran}files of JSON", "/s", 0.6, acknowledged, files, "Spark's files"),
            Row("P33", f"{measure}, noAck", f"{ran}files of JSON", "/s", 0.6, no_ack, files, "Spark's files"),
            Row("P33", measure, f"{ran}an Arrow file", "/s", None, acknowledged, python, "Python source"),
        ]
    return rows


def _arrow_files(folder: Path) -> dict[str, Path]:
    """Write the events of each kind to an Arrow file."""
    files = {}
    for kind in SCHEMAS:
        files[kind] = folder / f"{kind}.arrow"
        rows = tables(session(), folder / "events")(kind).coalesce(1).toArrow()
        with pa.ipc.new_file(files[kind], rows.schema) as file:
            file.write_table(rows, max_chunksize=10_000)
    return files


def _arrow_streams(files: Mapping[str, Path], query: Query) -> Views:
    session().dataSource.register(OwnSource)

    def view(kind: str) -> DataFrame:
        source = session().readStream.format("own").option("file", str(files[kind]))
        return source.schema(columns(kind, query)).load()

    return view


def _streams(query: Query, url: str, folder: Path, options: Mapping[str, str]) -> float:
    return _rate(query, streams(session(), url, _PREFIX, query, f"g{next(_groups)}", **options), folder)


def _rate(query: Query, views: Views, folder: Path) -> float:
    """Return the events a second a core."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    rate = _EVENTS / run(session(), query, views, out) / _CORES
    # Spark keeps the state of an ended query for a minute, in the memory that the next one needs.
    session()._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
    return rate
