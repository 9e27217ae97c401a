"""A program as users write one, with `spark_streams.run`: `python own_program.py errors|signals FOLDER URL…`.

It writes to standard error what it does, each line with a `#`, and to FOLDER what is waited for. All other lines there
are Spark's and spark_streams' own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams
from spark_streams.connector.errors import RStreamError

what, folder, urls = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)


def say(line: object) -> None:
    print("#", line, file=sys.stderr, flush=True)


def entries(url: str, **options: str) -> DataFrame:
    given = {"url": url, "streams": "orders", "group": "g", "startingOffsets": "earliest", **options}
    return spark.readStream.format("rstream").schema("a INT").options(**given).load()


def to_noop(rows: DataFrame) -> DataStreamWriter:
    return rows.writeStream.format("noop")


def wait_for(name: str) -> None:
    """Until the test has seen what it waited for."""
    while not (folder / name).exists():
        time.sleep(0.02)


def errors() -> None:
    for url in urls:
        with redis.Redis.from_url(url) as client:
            for value in ("1", "2", "3", "four"):
                client.xadd("orders", {"a": value})
        # Two tasks at a time: those beside the one that fails are stopped.
        unfit = {"mode": "FAILFAST", "entriesPerPartition": "1"}
        attempt("option", to_noop(entries(url, grup="x")))
        attempt("server", to_noop(entries("redis://127.0.0.1:1/0")))
        attempt("value", to_noop(entries(url, group="started", **unfit)).start())
        attempt("function", entries(url, group="function").writeStream.foreachBatch(failing))
    say("begins: in the end")
    spark_streams.run(to_noop(entries(url, group="end", **unfit)))


def attempt(name: str, query: object) -> None:
    say(f"begins: {name}")
    try:
        spark_streams.run(query)
    except RStreamError as error:
        say(f"{type(error).__name__} {error}")


def failing(rows: DataFrame, number: int) -> None:
    raise ValueError(f"not today {rows.count() + number}")


def signals() -> None:
    for at, url in enumerate(urls):
        with redis.Redis.from_url(url, decode_responses=True) as client:
            for name, within in (("INT", "10m"), ("TERM", "10m"), ("cut", "500ms")):
                client.xadd("orders", {"a": "1"})
                say(f"begins: {name}")
                spark_streams.run(writer(url, f"{name}{at}"), stop_within=within)
                say(f"pending {client.xpending('orders', 'g')['pending']}")
    client.xadd("orders", {"a": "1"})
    say("begins: twice")
    spark_streams.run(writer(urls[-1], "twice"), stop_within="10m")


def writer(url: str, name: str) -> DataStreamWriter:
    return entries(url).writeStream.foreachBatch(endless(name) if name.startswith("cut") else waiting(name))


def waiting(name: str) -> Callable[[DataFrame, int], None]:
    def function(rows: DataFrame, _number: int) -> None:
        (folder / f"{name}.begun").touch()
        wait_for(f"{name}.go")
        say(f"batch of {rows.count()} finished")

    return function


def endless(name: str) -> Callable[[DataFrame, int], None]:
    def function(rows: DataFrame, _number: int) -> None:
        (folder / f"{name}.begun").touch()
        rows.sparkSession.sparkContext.parallelize([0], 1).map(lambda _: time.sleep(600)).count()

    return function


say("ready")
{"errors": errors, "signals": signals}[what]()
