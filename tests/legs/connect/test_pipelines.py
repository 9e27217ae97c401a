"""examples/pipelines as a declarative pipeline: `spark-pipelines run`, again, killed, and with a full refresh."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyspark
import pytest

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tools.servers.server import Server
from tools.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.long]
EXAMPLE = Path(__file__).parents[3] / "examples" / "pipelines" / "orders"
PROGRAM = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
SECONDS = 240

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Start]:
    """Starts an update of the pipeline. Its tables are in a catalog of their own, which updates share."""
    if not PROGRAM.exists():
        # They came with Spark 4.1; `scripts/test --pipelines` runs this on 4.1, 4.2 and 4.3.
        pytest.skip("this Spark has no declarative pipelines")
    shutil.copytree(EXAMPLE, tmp_path / "pipeline")
    spec = tmp_path / "pipeline" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/orders-pipeline", (tmp_path / "storage").as_uri()))
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    pythons = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    environment = {**os.environ, **pythons, "RSTREAM_URL": server.url}
    started: list[subprocess.Popen[bytes]] = []

    def start_update(*options: str) -> subprocess.Popen[bytes]:
        log = (tmp_path / "log").open("ab")
        started.append(
            subprocess.Popen(
                [PROGRAM, "run", *words, "--spec", str(spec), *options],
                cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True,
            )
        )  # fmt: skip
        return started[-1]

    yield start_update
    for update in started:
        if update.poll() is None:
            os.killpg(update.pid, signal.SIGKILL)
            update.wait()


def add(server: Server, stream: str, first: int, count: int) -> None:
    """Add orders whose amounts are their numbers."""
    with server.client() as client, client.pipeline() as pipe:
        for n in range(first, first + count):
            pipe.xadd(stream, {"customer": f"c{n}", "amount": n})
        pipe.execute()


def large(server: Server) -> Counter[int]:
    """How often each number is in the stream of large orders."""
    with server.client() as client:
        return Counter(int(float(fields[b"amount"])) for _, fields in client.xrange("large-orders"))


def has_written(server: Server, rows: int) -> bool:
    return large(server).total() >= rows


def is_running(update: subprocess.Popen[bytes]) -> bool:
    return update.poll() is None


def finish(update: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert update.wait(SECONDS) == 0, (tmp_path / "log").read_text()[-3000:]


def test_updates_write_each_row_once_and_a_full_refresh_reads_again(
    start: Start, server: Server, tmp_path: Path
) -> None:
    add(server, "orders", 95, 10)
    add(server, "phone-orders", 200, 3)
    with server.client() as client:
        client.xadd("orders", {"customer": "bad", "amount": "a lot"})
    finish(start(), tmp_path)
    assert large(server) == Counter([101, 102, 103, 104, 200, 201, 202])
    add(server, "orders", 300, 2)
    finish(start(), tmp_path)
    assert large(server) == Counter([101, 102, 103, 104, 200, 201, 202, 300, 301])
    with server.client() as client:
        reasons = [fields[b"dl.group"] for _, fields in client.xrange("orders:dead")]
        client.delete("large-orders")
    assert sorted(reasons) == [b"lake", b"large"]
    finish(start("--full-refresh-all"), tmp_path)
    assert large(server) == Counter([101, 102, 103, 104, 200, 201, 202, 300, 301])


def test_a_killed_update_goes_on_with_each_row_once(start: Start, server: Server, tmp_path: Path) -> None:
    add(server, "orders", 101, 30_000)
    add(server, "phone-orders", 50_000, 30_000)
    code = tmp_path / "pipeline" / "transformations" / "orders.py"
    code.write_text(code.read_text().replace('mode="DEADLETTER"', 'maxEntriesPerTrigger=10_000, mode="DEADLETTER"'))
    all_rows = Counter([*range(101, 30_101), *range(50_000, 80_000)])
    for rows in (1_000, 3_000):
        update = start()
        until(
            partial(has_written, server, rows),
            "the update wrote nothing",
            SECONDS,
            partial(is_running, update),
            (tmp_path / "log").read_text,
        )
        os.killpg(update.pid, signal.SIGKILL)
        update.wait()
        assert max(large(server).values()) == 1
    for _ in range(1 if HAS_READ_LIMITS else 20):  # Spark 4.1: an update reads one batch of each source
        finish(start(), tmp_path)
        if large(server) == all_rows:
            break
    assert large(server) == all_rows
