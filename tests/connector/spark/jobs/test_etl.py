"""The etl job with many outputs: each is written once, also where a batch is run again."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_streams import register
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.keys import CLOSED, record_key
from spark_streams.jobs.job import CheckedError, Job
from spark_streams.jobs.parts.query import Query
from spark_streams.jobs.parts.source_and_sink import Source
from spark_streams.jobs.programs import aggregate, etl
from tools.servers.server import Server

pytestmark = pytest.mark.spark

AVRO = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "n", "type": "int"}, {"name": "who", "type": ["null", "string"]},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}  # fmt: skip
CONFIG = """
url = "{url}"
source = {{streams = "orders", group = "etl", startingOffsets = "earliest", maxEntriesPerTrigger = 7}}
schema.avro = "{folder}/order.avsc"
dead_letters.stream = "orders:dead"
job = {{checkpoint = "{folder}/checkpoint"}}

[[rule]]
reason = "nobody"
when = "who IS NULL"

[sql]
query = "SELECT *, amount * 2 AS twice FROM rows"

[table]
format = "orc"
path = "{folder}/all"
partition_by = ["who"]

[[output]]
name = "large"
where = "amount >= 10"
select = {{ n = "n", sum = "CAST(twice AS STRING)" }}
sink.stream = "large"

[[output]]
name = "none"
where = "false"
sink.stream = "none"

[[output]]
name = "by who"
sql = "SELECT who, count(*) AS orders, sum(amount) AS amount FROM rows GROUP BY who ORDER BY who"
table = {{ format = "json", path = "{folder}/by_who" }}
"""


@pytest.fixture
def config(server: Server, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    with server.client() as client:
        for n in range(20):
            fields = {"n": n, "who": "ann" if n % 2 else "bob", "amount": f"{n}.50"}
            client.xadd("orders", fields if n % 10 else {**fields, "amount": "much"})
        client.xadd("orders", {"n": 20, "amount": "1"})
    return tomllib.loads(CONFIG.format(url=server.url, folder=tmp_path))


def run(spark: SparkSession, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, program: Any = etl) -> Job:
    """The job in the session of all tests."""
    register(spark)
    monkeypatch.setattr(Job, "session", lambda _job: spark)
    job = Job("etl", config, Console(quiet=True))
    program.PROGRAM.body(job)
    return job


def test_each_output_has_its_rows_once(
    spark: SparkSession, server: Server, config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run(spark, config, monkeypatch).summary
    assert told["reasons"] == {"decode: amount does not fit DECIMAL(10, 2)": 2, "nobody": 1}
    assert (told["entries"], told["orc"], told["dead"], told["outputs"]["large"]) == (21, 18, 3, 9)
    assert told["outputs"]["by who"] >= 2

    def seen() -> tuple[Any, ...]:
        with server.client(decode_responses=True) as client:
            large = [(fields["n"], fields["sum"]) for _, fields in client.xrange("large")]
            dead = client.xlen("orders:dead")
        orc = spark.read.orc(f"{tmp_path}/all").select("n", "who", "twice").collect()
        by_who = spark.read.json(f"{tmp_path}/by_who").groupBy("who").sum("orders").collect()
        return sorted(large), dead, sorted(map(str, orc)), sorted(map(str, by_who))

    before = seen()
    assert before[0] == sorted((str(n), f"{2 * n + 1}.00") for n in range(11, 20))
    assert (before[1], len(before[2]), len(before[3])) == (3, 18, 2)
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    query = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    with server.client() as client:  # a batch without rows, for which Spark runs no task, is closed, too
        assert client.hget(record_key(f"{query}.output:none"), CLOSED) == str(last).encode()
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink()
    again = run(spark, config, monkeypatch).summary
    assert 0 < again["entries"] <= 7
    assert seen() == before


def test_of_a_stream_that_both_fill_nobody_says_how_many_the_source_moved(
    spark: SparkSession, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server counts the job's own dead letters, too."""
    config["source"] |= {"mode": "deadletter", "deadLetterStream": "orders:dead"}
    told = run(spark, config, monkeypatch).summary
    assert (told["entries"], told["dead"], told["reasons"]) == (19, 1, {"nobody": 1})
    assert "moved_by_source" not in told


MESSY = """
url = "{url}"
source = {{streams = "messy", group = "etl", startingOffsets = "earliest", nullValue = "NA,null"}}
dead_letters.stream = "messy:dead"
job = {{checkpoint = "{folder}/messy-checkpoint", log = "{folder}/log", metrics_file = "{folder}/metrics"}}
table = {{path = "{folder}/messy"}}
rule = [{{reason = "nobody", when = "note = 'none'"}}]

[columns]
n = "INT"
amount = "DECIMAL(10,2)"
paid = "BOOLEAN"
at = "TIMESTAMP"
tags = "ARRAY<INT>"
note = "STRING"
"""


def test_values_are_read_by_the_rules_of_the_source_and_none_is_rounded(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = {"n": "1", "amount": "12.50", "paid": "true", "at": "2026-11-20T10:00:00Z", "tags": "[1]", "note": "x"}
    good: list[dict[str, str]] = [
        fine,
        {**fine, "n": " +2 ", "amount": "12.500", "paid": "1", "at": "1795168800000", "tags": " [1] "},
        {**fine, "n": "NA", "amount": "null", "paid": "", "at": "", "tags": "", "note": ""},
        {"n": "4", "note": "NA"},
    ]
    bad = {
        "decode: amount does not fit DECIMAL(10,2)": ["12.505", "1,234.00", "1e9", "NaN"],
        "decode: paid does not fit BOOLEAN": ["yes", "0.0", "t"],
        "decode: n does not fit INT": ["2.5", "1e3", "2147483648", "0x10"],
        "decode: at does not fit TIMESTAMP": ["20.11.2026", "soon", "2026-02-30"],
        "decode: tags does not fit ARRAY<INT>": ["1", "[1.5]", "{}"],
    }
    with server.client() as client:
        for entry in good:
            client.xadd("messy", entry)
        for reason, values in bad.items():
            for value in values:
                client.xadd("messy", {**fine, reason.split()[1]: value})
        client.xadd("messy", {**fine, "amount": "12.505", "n": "x"})
        client.xadd("messy", {**fine, "note": "none"})
    summary = run(spark, tomllib.loads(MESSY.format(url=server.url, folder=tmp_path)), monkeypatch).summary
    expected = {reason: len(values) for reason, values in bad.items()}
    expected |= {"decode: n does not fit INT": 5, "nobody": 1}
    assert summary["reasons"] == expected
    rows = spark.read.parquet(f"{tmp_path}/messy").selectExpr(
        "n", "CAST(amount AS STRING)", "paid", "CAST(at AS STRING)", "tags", "note"
    ).collect()  # fmt: skip
    day = "2026-11-20 10:00:00"
    assert sorted(map(tuple, rows), key=str) == sorted(
        [
            (1, "12.50", True, day, [1], "x"),
            (2, "12.50", True, day, [1], "x"),
            (None, None, None, None, None, ""),
            (4, None, None, None, None, None),
        ],
        key=str,
    )
    with server.client(decode_responses=True) as client:
        dead = [fields for _id, fields in client.xrange("messy:dead")]
    assert len(dead) == sum(expected.values())
    assert {fields["amount"] for fields in dead if "amount" in fields["dl.reason"]} == set(bad[next(iter(bad))])
    messages = {fields["dl.message"] for fields in dead if fields["dl.error"] == "RSTREAM_DECODE"}
    assert "field 'amount' is '1,234.00', which does not fit DECIMAL(10,2)" in messages
    assert [fields["dl.message"] for fields in dead if fields["dl.error"] == "rule"] == [
        "the rule holds: note = 'none'"
    ]
    assert {fields["dl.deliveries"] for fields in dead} == {"1"}
    # The log and the metrics have them, too.
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    counts = [line["groups"][0]["dead"] for line in lines if line["event"] == "progress"]
    assert counts[-1] == len(dead)
    total = 'rstream_dead_letters_total{group="etl",query="etl",stream="messy"} '
    assert f"{total}{len(dead)}.0" in (tmp_path / "metrics").read_text()


def test_a_value_in_a_message_is_short_and_text(
    spark: SparkSession, engine_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_server.client() as client:
        client.delete("messy", "messy:dead")  # tests of this file share the server
        client.xadd("messy", {"n": b"\xff" + 200 * b"9"})
        # Of a name that occurs twice, the last value counts.
        client.execute_command("XADD", "messy", "*", "n", "1", "n", "two")
    run(spark, tomllib.loads(MESSY.format(url=engine_server.url, folder=tmp_path)), monkeypatch)
    with engine_server.client() as client:
        messages = [fields[b"dl.message"].decode() for _id, fields in client.xrange("messy:dead")]
    assert sorted(messages) == [
        "field 'n' is 'two', which does not fit INT",
        f"field 'n' is '\ufffd{99 * '9'}…', which does not fit INT",
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sql", {"query": "SELECT nothing FROM rows"}, r"sql.query: \[UNRESOLVED_COLUMN"),
        ("output", [{"name": "x", "where": "m > 1", "sink": {"stream": "x"}}], r"output x: \[UNRESOLVED_COLUMN"),
        ("output", [{"name": "x", "sql": "SELEKT", "sink": {"stream": "x"}}], r"output x: \[PARSE_SYNTAX_ERROR\]"),
        (
            "output",
            [{"name": "x", "select": ["n"], "table": {"path": "x", "partition_by": ["who"]}}],
            "output x: table.partition_by names 'who', which is not among the columns",
        ),
        (
            "table",
            {"format": "delta", "path": "x"},
            "table.format .delta.: .*DATA_SOURCE_NOT_FOUND.*jars.packages",
        ),
        ("schema", {"ddl": "n INTT"}, r"schema.ddl: \["),
        ("schema", {"ddl": "n INT, m INT, N STRING"}, "schema.ddl has n and N: they are one name in SQL"),
        ("columns", {"N": "INT"}, "schema.avro has n and N: they are one name in SQL"),
        (
            "schema",
            {"ddl": "n INT, wait INTERVAL DAY"},
            r"schema.ddl: column 'wait' is declared duration.us.: fields are read as",
        ),
    ],
)
def test_errors_that_only_spark_detects_are_reported_before_anything_starts(
    spark: SparkSession, engine_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    key: str, value: Any, message: str,
) -> None:  # fmt: skip
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    config = tomllib.loads(CONFIG.format(url=engine_server.url, folder=tmp_path))
    with pytest.raises(ConfigError, match=message):
        run(spark, {**config, key: value}, monkeypatch)
    assert not (tmp_path / "checkpoint").exists()


def test_an_aggregate_takes_its_columns_from_a_schema_too(
    spark: SparkSession, config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {key: config[key] for key in ("url", "source", "schema", "job")}
    keys |= {"aggregate": {"keys": ["who"], "values": {"n": "count(n)"}}, "sink": {"stream": "counts"}}
    monkeypatch.setattr(Job, "plan", lambda _job, *parts: (_ for _ in ()).throw(CheckedError))
    with pytest.raises(CheckedError):
        run(spark, keys, monkeypatch, aggregate)
    with pytest.raises(ConfigError, match=r"\[aggregate\]: .*UNRESOLVED_COLUMN"):
        run(spark, keys | {"aggregate": {"keys": ["whom"], "values": {"n": "count(n)"}}}, monkeypatch, aggregate)


def test_a_check_finds_the_checkpoint_in_any_file_system(
    spark: SparkSession, engine_server: Server, tmp_path: Path
) -> None:
    java = spark.sparkContext._jsc
    assert java is not None
    java.hadoopConfiguration().set("fs.viewfs.mounttable.lake.link./data", tmp_path.as_uri())
    config = {
        "url": engine_server.url, "source": {"group": "etl", "streams": ["orders"]},
        "job": {"checkpoint": "viewfs://lake/data/checkpoint"},
    }  # fmt: skip
    job = Job("etl", config, Console(quiet=True), check=True, spark=spark)
    query = Query(job, Source(job))
    assert query.plan()["checkpoint"] == "viewfs://lake/data/checkpoint"
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "1"}')
    assert query.plan()["checkpoint"] == "viewfs://lake/data/checkpoint (continues)"
