"""A checkpoint that an unreleased version has written is refused by a named error, which says what to do.

tests/data/unreleased/checkpoint is the checkpoint of such a query: three batches of twenty entries from stream `in`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_streams
from spark_streams.connector.errors import OffsetError
from tools.servers.server import Server

pytestmark = pytest.mark.spark

CHECKPOINT = Path(__file__).parents[2] / "data" / "unreleased" / "checkpoint"


def test_a_checkpoint_of_an_unreleased_version_is_refused_and_a_new_one_continues(
    server: Server, spark: SparkSession, tmp_path: Path
) -> None:
    shutil.copytree(CHECKPOINT, tmp_path / "old")
    with server.client(decode_responses=True) as client:
        for n in range(60):
            client.xadd("in", {"n": n}, id=f"{1000 + n}-0")
        client.xgroup_create("in", "g", "1039-0")  # what was acknowledged
        reader = spark.readStream.format("rstream").schema("n long")
        rows = reader.options(url=server.url, streams="in", group="g", startingOffsets="earliest").load()
        writer = rows.writeStream.format("rstream").options(url=server.url, stream="out").trigger(availableNow=True)
        with pytest.raises(
            OffsetError,
            match="an unreleased spark-streams has written .* the same group and a new checkpoint directory",
        ):
            spark_streams.run(writer.option("checkpointLocation", str(tmp_path / "old")))
        assert client.xlen("out") == 0
        spark_streams.run(writer.option("checkpointLocation", str(tmp_path / "new")))
        assert [int(fields["n"]) for _, fields in client.xrange("out")] == list(range(40, 60))
