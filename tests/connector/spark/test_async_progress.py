"""asyncProgressTrackingEnabled is refused by name: Spark runs batches that are not in the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQueryException

from tests.connector.spark.streams import read_stream
from tools.driving import drain, forget_all, pending_count, reader
from tools.servers.server import Server

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("interval", ["1000", "0"])
def test_a_query_with_asynchronous_progress_is_refused_and_goes_on_without_it(
    spark: SparkSession, server: Server, tmp_path: Path, interval: str
) -> None:
    """At its second batch. interval: between two batches that Spark logs, in milliseconds."""
    with server.client() as client:
        for n in range(100):
            client.xadd("s", {"n": n})
    rows = read_stream(spark, server, "n INT", streams="s", maxEntriesPerTrigger="10")
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    writer.option("asyncProgressTrackingEnabled", "true")
    query = writer.option("asyncProgressTrackingCheckpointIntervalMs", interval).start()
    with pytest.raises(StreamingQueryException, match=r"RSTREAM_UNSUPPORTED.*Remove the option asyncProgressTracking"):
        query.awaitTermination(60)
    # Spark refuses to start the query in this process again (CONCURRENT_QUERY), so it goes on without Spark.
    committed = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])
    assert (tmp_path / "commits" / "0").exists()
    again = reader(server)
    assert [n for batch in drain(again, start=committed) for n in batch] == list(range(10, 100))
    forget_all()
    with server.client() as client:
        assert pending_count(client) == 0
