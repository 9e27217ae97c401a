"""Recipes whose process is killed: state, windows, hashes and a Delta table are what all entries, read once, give."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
import redis

from spark_streams.spark.read_limits import HAS_READ_LIMITS
from tests.recipes.conftest import recipe_of
from tests.servers import Server

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0  # seconds
HOUR = 3_600_000  # ms
BEGIN = 1_767_225_600_000  # 2026-01-01
QUERIES = ("totals", "windows", "hashes", "delta")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not HAS_READ_LIMITS, reason="before Spark 4.2 the last windows wait for a later run"),
]


class Feed:
    """Entries for all four queries, and what they come to."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.orders: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.state: dict[str, dict[str, str]] = {}
        self.sales: list[tuple[str, Decimal]] = []
        self.windows: dict[tuple[int, str], tuple[int, Decimal]] = {}
        self._n = 0

    def round(self) -> None:
        """Fifty entries for each; the readings are twelve seconds apart."""
        with self._client.pipeline(transaction=False) as sent:
            for n in range(self._n, self._n + 50):
                customer, amount = f"c{n * n % 7}", Decimal(n) + Decimal("0.25")
                order = {"customer": customer, "amount": str(amount), "place": f"p{n}"}
                for stream in ("example:purchases", "example:sales", "example:moves"):
                    sent.xadd(stream, order)
                self.orders[customer] += 1
                self.totals[customer] += amount  # type: ignore[assignment]
                self.state[customer] = order
                self.sales.append((customer, amount))
                self._reading(sent, BEGIN + n * 12_000, f"s{n % 3}", Decimal(n % 9), ("north", "south")[n % 2])
            sent.execute()
        self._n += 50

    def close_the_windows(self) -> None:
        """A reading much later than all others, which itself is in no closed window."""
        self._client.xadd("example:north", {"sensor": "last", "degrees": "0"}, id=f"{BEGIN + 1000 * HOUR}-0")

    def _reading(self, sent: redis.client.Pipeline, at: int, sensor: str, degrees: Decimal, where: str) -> None:
        sent.xadd(f"example:{where}", {"sensor": sensor, "degrees": str(degrees)}, id=f"{at}-0")
        count, total = self.windows.get((at // HOUR, sensor), (0, Decimal(0)))
        self.windows[at // HOUR, sensor] = (count + 1, total + degrees)


def started(server: Server, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.recipes.killed_program", server.url, str(folder), *words]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True)


def commits(folder: Path, query: str) -> int:
    return sum(file.name.isdigit() for file in (folder / query / "commits").glob("*"))


def test_what_is_there_in_the_end_is_what_a_batch_gives(server: Server, tmp_path: Path) -> None:
    """Killed while each query has committed a batch, or some, and is in the midst of others; then run to the end."""
    with server.client(decode_responses=True) as client:
        feed = Feed(client)
        feed.round()
        process = started(server, tmp_path)
        try:
            deadline = time.monotonic() + PATIENCE
            while min(commits(tmp_path, query) for query in QUERIES) < 1:
                assert process.poll() is None, (tmp_path / "said").read_text()[-3000:]
                assert time.monotonic() < deadline, (tmp_path / "said").read_text()[-3000:]
                feed.round()
                time.sleep(0.2 + random.random() / 2)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        before = {query: commits(tmp_path, query) for query in QUERIES}
        feed.round()
        feed.close_the_windows()
        code = started(server, tmp_path, "drain").wait(PATIENCE)
        assert code == 0, (tmp_path / "said").read_text()[-3000:]
        assert all(commits(tmp_path, query) > count for query, count in before.items())
        check(client, feed, tmp_path)


def check(client: redis.Redis, feed: Feed, folder: Path) -> None:
    from deltalake import DeltaTable

    last: dict[str, tuple[int, Decimal]] = {}
    for _, entry in client.xrange("example:totals"):
        orders, total = last.get(entry["customer"], (0, Decimal(0)))
        now = (int(entry["orders"]), Decimal(entry["total"]))
        assert now > (orders, total), "each change once, and in order"
        last[entry["customer"]] = now
    assert last == {customer: (feed.orders[customer], feed.totals[customer]) for customer in feed.orders}

    hours = {
        (datetime.fromisoformat(one["hour"]).timestamp() * 1000 // HOUR, one["sensor"]): one
        for _, one in client.xrange("example:hours")
    }
    assert len(hours) == client.xlen("example:hours")
    assert {window: (int(one["readings"]), Decimal(one["degrees"])) for window, one in hours.items()} == feed.windows

    hashes = recipe_of("latest_in_hashes")
    assert {customer: client.hgetall(hashes.key(customer)) for customer in feed.state} == feed.state

    sold = DeltaTable(folder / "table").to_pyarrow_table().to_pylist()
    assert sorted((row["customer"], row["amount"]) for row in sold) == sorted(feed.sales)

    for stream in ("purchases", "north", "south", "moves", "sales"):
        assert client.xpending(f"example:{stream}", client.xinfo_groups(f"example:{stream}")[0]["name"])["pending"] == 0
