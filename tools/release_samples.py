"""Make samples of the state that a release writes: `python -m tools.release_samples`, on the day of the release.

They are in tests/data/VERSION from then on, and connector/spark/test_released_state.py continues from each:

- `engine/`: the append-only file of the bundled engine. It holds the streams, the group with its position, the ledger,
  the other keys of the query, and a dead letter;
- `checkpoint/`: Spark's checkpoint of the query.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import redis
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams
from spark_streams.base.version import __version__
from spark_streams.engine import LocalEngine

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data"
BAD = 7  # the entry that becomes a dead letter: its `n` is no number
WRITTEN, WAITING = 60, 20  # entries that the query has written, and that came after its end


def writer(spark: SparkSession, url: str, checkpoint: Path) -> DataStreamWriter:
    """Return the query of the samples: stream `in` to stream `out`, by group `g`, twenty entries a batch."""
    rows = spark.readStream.format("rstream").schema("n LONG").options(url=url, streams="in", group="g")
    rows = rows.options(startingOffsets="earliest", maxEntriesPerTrigger=20, mode="DEADLETTER", deadLetterStream="dead")
    out = rows.load().writeStream.format("rstream").options(url=url, stream="out")
    return out.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def make(spark: SparkSession, folder: Path) -> None:
    """Write the samples of this version into a folder that does not exist. Raises FileExistsError."""
    folder.mkdir(parents=True)
    (folder / "engine").mkdir()
    with LocalEngine(folder / "engine", fsync="always") as engine, redis.Redis.from_url(engine.url) as client:
        for number in range(WRITTEN):
            client.xadd("in", {"n": "bad" if number == BAD else number})
        spark_streams.run(writer(spark, engine.url, folder / "checkpoint"))
        for number in range(WRITTEN, WRITTEN + WAITING):
            client.xadd("in", {"n": number})
    for path in folder.rglob(".*.crc"):
        path.unlink()


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = FOLDER / __version__
    if folder.exists():
        sys.exit(f"release_samples: {folder} is there already, and samples of a release do not change: keep it")
    make(SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate(), folder)
    print(f"{folder}: {sum(path.is_file() for path in folder.rglob('*'))} files")


if __name__ == "__main__":
    main()
