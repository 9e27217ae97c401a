"""What users of a driver that limits options try in SQL and Python: `python limited_program.py URL FOREIGN_URL`.

It prints one line of JSON: by the name of each attempt, `done` or the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from pyspark.sql import SparkSession

from spark_streams.connector.errors import find_in_text

url, foreign = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
said: dict[str, str] = {}


def attempt(name: str, what: Callable[[], object]) -> None:
    try:
        what()
        said[name] = "done"
    except Exception as error:  # noqa: BLE001 - it is shown
        said[name] = find_in_text(str(error)) or str(error)


def view(options: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v (n INT) USING rstream OPTIONS ({options})")
    spark.sql("SELECT * FROM v").collect()


def insert(options: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW w (n INT) USING rstream OPTIONS ({options})")
    spark.sql("INSERT INTO w SELECT 1")


def query(**options: str) -> None:
    rows = spark.readStream.format("rstream").schema("n INT").options(streams="orders", group="g", **options).load()
    rows.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


attempt("listed", lambda: view(f"url '{url}', streams 'orders'"))
attempt("listed sink", lambda: insert(f"url '{url}', stream 'out'"))
attempt("listed query", lambda: query(url=url))
attempt("host", lambda: view(f"url '{foreign}', streams 'orders'"))
attempt("host of a sink", lambda: insert(f"url '{foreign}', stream 'out'"))
attempt("host of a query", lambda: query(url=foreign))
attempt("file", lambda: view(f"url '{url}', streams 'orders', passwordFile '/etc/passwd'"))
attempt("provider", lambda: view(f"url '{url}', streams 'orders', credentialProvider 'os:getcwd'"))
attempt("engine", lambda: insert("url 'embedded:///tmp/rstream-not-allowed', stream 'out'"))
spark.sql("CREATE TABLE t (n INT) USING rstream")
attempt("host of a table", lambda: spark.sql(f"SELECT * FROM t WITH (url '{foreign}', streams 'orders')").collect())
for name in ("RSTREAM_ALLOW_HOSTS", "RSTREAM_ALLOW_FILES"):
    for setting in (f"spark.executorEnv.{name}", f"spark.yarn.appMasterEnv.{name}", name):
        attempt(f"SET {setting}", lambda setting=setting: spark.sql(f"SET {setting}=*,/,127.0.0.1"))  # type: ignore[misc]
attempt("host after SET", lambda: view(f"url '{foreign}', streams 'orders'"))
attempt("host of a query after SET", lambda: query(url=foreign))
spark.stop()
print(json.dumps(said))
