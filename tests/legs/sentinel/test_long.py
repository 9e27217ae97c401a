"""A Spark query from a stream to a stream behind sentinels, for minutes, while masters are killed, replaced and frozen.

Run by -m kills; RSTREAM_SENTINEL_MINUTES says for how long (two where it says nothing).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_streams
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.session import Session
from tools.driving import pending_count
from tools.once import once
from tools.servers.sentinels import Sentinels
from tools.waiting import until

pytestmark = [pytest.mark.kills, pytest.mark.spark]
MINUTES = float(os.environ.get("RSTREAM_SENTINEL_MINUTES", "2"))
_SETTLE = 4.0  # seconds between two strikes, and that a frozen master stands still


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark_streams.register(session)
    yield session
    session.stop()


class Producing(threading.Thread):
    """Entries n = 0, 1, … into stream s, until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._session = Session(Address.parse(url), "producing", is_known=True)
        self.ended = threading.Event()
        self.count = 0

    def run(self) -> None:
        with self._session as session:
            while not self.ended.wait(0.01):
                commands = [("XADD", "s", "*", "n", self.count + i) for i in range(10)]
                session.run(lambda server, commands=commands: server.execute_all(commands))
                self.count += 10


def strike(sentinels: Sentinels, how: str) -> None:
    """Until another server is the master."""
    before = sentinels.master()
    if how == "kill":
        sentinels.kill(before)
    elif how == "freeze":
        sentinels.freeze(before)
    else:
        sentinels.fail_over()
    until(lambda: sentinels.master() != before, f"no failover after {how}")
    time.sleep(_SETTLE)
    if how == "freeze":
        sentinels.thaw(before)
    sentinels.healthy()


def test_a_query_goes_on_whatever_happens_to_masters(sentinels: Sentinels, spark: SparkSession, tmp_path: Path) -> None:
    producing = Producing(sentinels.url)
    producing.start()
    rows = (
        spark.readStream.format("rstream").schema("n LONG").option("url", sentinels.url)
        .options(streams="s", group="g", startingOffsets="earliest").load()
    )  # fmt: skip
    query = (
        rows.writeStream.format("rstream").option("url", sentinels.url).option("stream", "out")
        .option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 second").start()
    )  # fmt: skip
    end, strikes = time.monotonic() + 60 * MINUTES, Counter[str]()
    while time.monotonic() < end:
        how = random.choice(("kill", "freeze", "failover"))
        strike(sentinels, how)
        strikes[how] += 1
        assert query.isActive, query.exception()
    producing.ended.set()
    producing.join(60)
    query.processAllAvailable()
    time.sleep(1)
    query.stop()
    print(f"\n{dict(strikes)}: {producing.count:,} entries")
    with sentinels.direct() as client:
        there = [int(fields["n"]) for _, fields in client.xrange("s")]
        judgement = once(there, [int(fields["n"]) for _, fields in client.xrange("out")])
        assert not judgement, judgement
        assert set(there) == set(range(producing.count))
        assert pending_count(client) == 0
