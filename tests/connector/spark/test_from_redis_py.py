"""docs/guide/from-redis-py.md, as printed: from workers to a query and back, each entry is handled once."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

from spark_streams.cli import main
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.spark
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "guide" / "from-redis-py.md").read_text(encoding="utf-8")
THERE, BACK = PAGE.partition("\n## And back\n")[::2]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(server: Server, lines: str) -> str:
    """Run the commands of a block. Return what they print."""
    return "".join(_run_one(server, line) for line in lines.splitlines())


def _run_one(server: Server, line: str) -> str:
    ran: list[Result] = []

    def is_free() -> bool:
        ran.append(CliRunner(env={"RSTREAM_URL": server.url}).invoke(main, shlex.split(line)[1:]))
        return "RSTREAM_GROUP_IN_USE" not in ran[-1].output

    # The source's process ends after Spark has said that its query has ended.
    until(is_free, f"{line}: a query goes on", interval=0.2)
    assert ran[-1].exit_code == 0, f"{line}: {ran[-1].output}"
    return ran[-1].output


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="before Spark 4.2 the next run acknowledges the last batch")
def test_from_workers_to_a_query_and_back(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    done: list[int] = []

    def add(client: redis.Redis, numbers: range) -> None:
        for n in numbers:
            client.xadd("orders", {"n": n})

    def write(batch: DataFrame, number: int) -> None:
        done.extend(row["n"] for row in batch.collect())

    given: dict[str, Any] = {
        "spark": spark, "schema": "n INT", "write": write, "checkpoint": str(tmp_path / "checkpoint"),
        "redis": redis, "handle": lambda fields: done.append(int(fields["n"])), "url": server.url,
    }  # fmt: skip
    (program,), (worker,) = blocks(THERE, "python"), blocks(BACK, "python")
    look, claim, delete = blocks(THERE, "sh")
    look_back, hand_back = blocks(BACK, "sh")
    program = program.replace('.option("streams"', f'.option("url", "{server.url}").option("streams"')
    with server.client() as client:
        client.xgroup_create("orders", "etl", id="0", mkstream=True)
        add(client, range(10))
        for name, acknowledged in (("worker-1", 3), ("worker-2", 2)):
            ((_, entries),) = client.xreadgroup("etl", name, {"orders": ">"}, count=4)
            client.xack("orders", "etl", *[entry for entry, _ in entries[:acknowledged]])
        done += [0, 1, 2, 4, 5]
        assert "worker-1" in run(server, look)
        exec(program, given)
        assert sorted(done) == [0, 1, 2, 4, 5, 8, 9]
        run(server, claim)
        exec(program, given)
        assert sorted(done) == [*range(10)]
        run(server, delete)
        assert [one["name"] for one in client.xinfo_consumers("orders", "etl")] == [b"spark"]

        add(client, range(10, 20))
        exec(program, given)
        add(client, range(20, 30))
        client.xreadgroup("etl", "spark", {"orders": ">"}, count=4)  # reserved for a batch that never begins
        assert "spark" in run(server, look_back)
        run(server, hand_back)
        exec(worker, given)
        assert sorted(done) == [*range(30)]
        assert client.xpending("orders", "etl")["pending"] == 0
        assert [one["name"] for one in client.xinfo_consumers("orders", "etl")] == [b"worker-1"]
        assert client.keys("rstream:*{orders}*") == []
