"""format("rstream") inside Spark on a real cluster: streams of a pattern, in all slots, to streams that move between
two runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_streams.connector.keys import slot_of
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from tests.connector.spark.streams import append, read_stream, run_to_the_end
from tools.servers.cluster import running_cluster
from tools.servers.server import skip_without_redis

pytestmark = pytest.mark.spark


def test_a_query_over_a_cluster_whose_slots_move_between_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    skip_without_redis()
    with running_cluster() as cluster:
        rows = spark.range(600).select("id", F.concat(F.lit("in-"), (F.col("id") % 6).cast("string")).alias("to"))
        append(rows, cluster.server, "in-0", streamColumn="to", chunkSize="50")
        frame = read_stream(
            spark, cluster.server, "id INT, _stream STRING", streamsPattern="in-*", maxEntriesPerTrigger="150"
        )

        def begin():  # type: ignore[no-untyped-def]
            to = frame.select("id", F.regexp_replace("_stream", "in-", "out-").alias("to"))
            writer = to.writeStream.format("rstream").options(url=cluster.url, streamColumn="to")
            return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

        run_to_the_end(begin)
        for n in range(6):
            cluster.move(slot_of(f"in-{n}".encode()), cluster.masters()[n % 3])
        append(rows.withColumn("id", F.col("id") + 600), cluster.server, "in-0", streamColumn="to")
        run_to_the_end(begin)
        table = spark.read.format("rstream").schema("id INT").options(url=cluster.url, streams="out-0,out-1").load()
        assert table.count() == 400
        with connect(Address.parse(cluster.url)) as server:
            for n in range(6):
                found = Counter(fields[1] for _, fields in server.execute("XRANGE", f"out-{n}", "-", "+"))
                assert found == Counter(b"%d" % one for one in range(n, 1200, 6))
                assert server.execute("XPENDING", f"in-{n}", "g")[0] == 0
