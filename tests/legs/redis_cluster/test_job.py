"""The main job on a cluster with TLS, as a user who has the documented rights and no others; the driver is killed in a
batch. Streams in several slots become Parquet, a stream and dead letters."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset
import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.keys import slot_of
from tests.certificates import certificates
from tests.jobs.work import PATIENCE, ROOT, SUBMIT
from tests.legs.redis_cluster.test_rights import IN_A_CLUSTER, RIGHTS
from tools.machine_time import wait_for_end
from tools.once import once
from tools.servers.cluster import RedisCluster, running_cluster
from tools.servers.server import skip_without_redis
from tools.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]

STREAMS = [f"flights-{n}" for n in range(8)]
LATE, DEAD = "late", "letters"
ENTRIES = 4_000
PASSWORD = "s3cr3t-w0rd"
CONFIG = """
source = {{ streams = "{streams}", group = "etl", startingOffsets = "earliest", maxEntriesPerTrigger = 400 }}
columns = {{ n = "BIGINT", carrier = "STRING", dep_time = "INT" }}
table = {{ format = "parquet", path = "{folder}/flights", partition_by = ["carrier"] }}
dead_letters = {{ stream = "{dead}" }}
job = {{ checkpoint = "{folder}/checkpoint", trigger = "available-now" }}

[[rule]]
reason = "no departure time"
when = "dep_time IS NULL"

[[output]]
name = "late"
where = "dep_time > 1200"
select = ["n", "dep_time - 1200 AS late"]
sink = {{ stream = "{late}" }}
"""


def departure(n: int) -> str | None:
    """Of entry n: None where there is none, a word that is no number, or a time."""
    return None if n % 10 == 3 else "noon" if n % 10 == 7 else str(n % 2400)


def is_dead_letter(n: int) -> bool:
    return not (departure(n) or "noon").isdigit()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    skip_without_redis()
    with running_cluster("--tls-auth-clients", "yes", keys=certificates(tmp_path_factory.mktemp("tls"))) as made:
        rights = f"{RIGHTS} {IN_A_CLUSTER}".split()
        keys = [f"~{name}" for name in (*STREAMS, LATE, DEAD, "rstream:*")]
        for port in made.ports:
            made.command(port, "ACL", "SETUSER", "etl", "reset", "on", f">{PASSWORD}", *keys, *rights)
        yield made


def filled(cluster: RedisCluster) -> None:
    assert len({cluster.owner(name) for name in STREAMS}) == 3
    assert len({slot_of(name.encode()) for name in (*STREAMS, LATE, DEAD)}) == len(STREAMS) + 2
    homes = {name: cluster.owner(name) for name in STREAMS}
    for n in range(ENTRIES):
        stream = STREAMS[n % len(STREAMS)]
        time_of = departure(n)
        fields = ["n", n, "carrier", f"C{n % 3}", *([] if time_of is None else ["dep_time", time_of])]
        cluster.command(homes[stream], "XADD", stream, "*", *fields)


def started(folder: Path, url: str) -> subprocess.Popen[bytes]:
    words = ["--config", f"{folder}/etl.toml", "--summary", f"{folder}/summary.json"]
    environment = {**os.environ, "RSTREAM_URL": url, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "spark_streams.cli", "run", "etl", *words],
            cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip


def kill_amid_a_batch(process: subprocess.Popen[bytes], folder: Path) -> int:
    """SIGKILL to the driver, its JVM and all Python workers, somewhere in a batch; which one."""
    offsets, commits = folder / "checkpoint" / "offsets", folder / "checkpoint" / "commits"
    batch = 3
    until(
        (offsets / str(batch)).exists,
        f"batch {batch} has not started",
        PATIENCE,
        alive=lambda: process.poll() is None,
        log=(folder / "said").read_text,
        interval=0.005,
    )
    time.sleep(random.random() / 10)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    print(f"killed in batch {batch}, which was {'' if (commits / str(batch)).exists() else 'not '}committed")
    return batch


def test_each_row_and_each_dead_letter_is_there_once(secured: RedisCluster, tmp_path: Path) -> None:
    filled(secured)
    url = secured.secured(f"etl:{PASSWORD}")
    text = CONFIG.format(streams=",".join(STREAMS), folder=tmp_path, late=LATE, dead=DEAD)
    quick = dict(pair.split("=", 1) for pair in SUBMIT[3::2])
    spark = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in quick.items()]
    (tmp_path / "etl.toml").write_text("\n".join([text, "[spark]", 'master = "local[2]"', *spark]))
    streams = [word for name in (*STREAMS, LATE, DEAD) for word in ("--stream", name)]
    asked = CliRunner().invoke(main, ["doctor", url, *streams, "--for", "reading", "--for", "writing"])
    assert "user has all rights for reading and writing, on flights-0" in " ".join(asked.output.split()), asked.output

    kill_amid_a_batch(started(tmp_path, url), tmp_path)
    again = started(tmp_path, url)
    try:
        assert wait_for_end(again, PATIENCE) == 0, (tmp_path / "said").read_text()[-3000:]
    finally:
        if again.poll() is None:
            os.killpg(again.pid, signal.SIGKILL)

    good = [n for n in range(ENTRIES) if not is_dead_letter(n)]
    table = pyarrow.dataset.dataset(tmp_path / "flights", partitioning="hive").to_table()
    assert not (judgement := once(good, table["n"].to_pylist())), judgement
    rows = rows_of(secured, LATE)
    late = {n: int(departure(n) or 0) - 1200 for n in good if int(departure(n) or 0) > 1200}
    assert not (judgement := once(late, [int(row["n"]) for row in rows])), judgement
    assert {int(row["n"]): int(row["late"]) for row in rows} == late
    letters = rows_of(secured, DEAD)
    dead = [n for n in range(ENTRIES) if is_dead_letter(n)]
    assert not (judgement := once(dead, [int(letter["n"]) for letter in letters])), judgement
    assert Counter(letter["dl.reason"] for letter in letters)["no departure time"] == ENTRIES // 10
    for name in STREAMS:
        assert secured.command(secured.owner(name), "XPENDING", name, "etl")["pending"] == 0
    said = (tmp_path / "said").read_text()
    assert PASSWORD not in said
    print(json.loads((tmp_path / "summary.json").read_text()))


def rows_of(cluster: RedisCluster, stream: str) -> list[dict[str, str]]:
    return [fields for _, fields in cluster.client(cluster.owner(stream)).xrange(stream)]
