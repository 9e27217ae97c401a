"""Source and sink under a platform's engine, whose PySpark is another one than the program's (running_pyspark.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
import redis
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType, TimestampType

from tests.legs.engine_pyspark.copy_of_pyspark import copy_of_pyspark, version_of_copy
from tests.legs.engine_pyspark.engine import Engine, EngineError, Processes, Query
from tools.driving import add, pending_count
from tools.once import once
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

ENTRIES = 10_000
SCHEMA = StructType([StructField("n", LongType())])


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder = copy_of_pyspark(tmp_path_factory.mktemp("engine"))
    print(f"program: PySpark {pyspark.__version__}; engine: PySpark {version_of_copy(folder)}")
    processes = Processes(folder)
    yield processes
    processes.close()


@pytest.fixture
def engine(processes: Processes, tmp_path: Path) -> Engine:
    return Engine(processes, tmp_path)


def query(engine: Engine, server: Server, **options: str) -> Query:
    source = {"url": server.url, "streams": "s", "group": "g", "startingOffsets": "earliest", **options}
    return Query(engine, source, {"url": server.url, "stream": "out"}, SCHEMA)


def written(client: redis.Redis) -> list[int]:
    return [int(fields["n"]) for _, fields in client.xrange("out")]


@pytest.mark.parametrize("arrow", ["true", "false", "auto"])
def test_ten_thousand_entries_in_several_batches(
    engine: Engine, server: Server, client: redis.Redis, arrow: str
) -> None:
    add(client, ENTRIES)
    one = query(engine, server, maxEntriesPerTrigger="3000", arrowBatches=arrow)
    one.run()
    assert one.committed == 4
    assert written(client) == list(range(ENTRIES))
    add(client, 10, first=ENTRIES)
    one.run()
    assert written(client) == list(range(ENTRIES + 10))
    assert pending_count(client) == 0


@pytest.mark.parametrize("step", ["logged", "planned", "written", "closed", "committed"])
def test_a_killed_run_goes_on_and_writes_each_row_once(
    engine: Engine, server: Server, client: redis.Redis, step: str
) -> None:
    add(client, 60)
    one = query(engine, server, maxEntriesPerTrigger="20")
    one.kill_at = (2, step)
    with pytest.raises(EngineError, match="killed"):
        one.run()
    one.run()
    assert not (judgement := once(range(60), written(client))), judgement
    assert pending_count(client) == 0


@pytest.mark.parametrize("arrow", ["true", "false"])
def test_a_batch_read_has_the_same_values_as_tuples_and_as_arrow(
    engine: Engine, server: Server, client: redis.Redis, arrow: str
) -> None:
    add(client, 25)
    schema = StructType([
        *SCHEMA, StructField("_id", StringType()), StructField("_timestamp", TimestampType()),
        StructField("_fields", MapType(StringType(), StringType())),
    ])  # fmt: skip
    source, _ = engine.create({"url": server.url, "streams": "s", "arrowBatches": arrow}, schema)
    function, partitions = engine.plan(source, schema.json(), is_streaming=False)
    [rows] = engine.read_partitions(function, partitions, {})
    assert rows.column("n").to_pylist() == list(range(25))
    assert dict(rows.column("_fields")[7].as_py()) == {"n": "7"}
    milliseconds = [int(entry.partition("-")[0]) for entry in rows.column("_id").to_pylist()]
    assert [int(at.timestamp() * 1000 + 0.5) for at in rows.column("_timestamp").to_pylist()] == milliseconds


def test_without_a_schema_the_default_columns_are_read(engine: Engine, server: Server, client: redis.Redis) -> None:
    add(client, 3)
    _, columns = engine.create({"url": server.url, "streams": "s", "databricks.connection": "redis"})
    assert columns.startswith("stream STRING, id STRING")


@pytest.mark.parametrize(("options", "error"), [
    ({"stream": "s", "maxEntriesPerTriger": "5"}, "did you mean 'maxEntriesPerTrigger'"),
    ({"path": "s"}, "take no path"),
    ({"paths": json.dumps(["s"])}, "take no path"),
])  # fmt: skip
def test_options_of_users_are_still_refused(engine: Engine, options: dict[str, str], error: str) -> None:
    with pytest.raises(EngineError, match=error):
        engine.create(options, SCHEMA)


def test_an_error_of_the_source_reaches_the_engine(engine: Engine, server: Server) -> None:
    one = query(engine, server, createStreams="false")
    with pytest.raises(EngineError, match="RSTREAM_"):
        one.run()
