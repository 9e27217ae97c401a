"""What the version before has left goes on with this one: a checkpoint, the group, and the sink's ledger.

tests/data/version_0.1 holds a query of three batches of twenty entries, from stream `in` to stream `out` with an
exactly-once sink, killed after the third was written and before it was committed: the checkpoint, and all commands that
its server had executed, as the append-only file of the bundled engine had them.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from tests.spark.streams import run_to_the_end
from tools.servers.server import Server

pytestmark = pytest.mark.spark

LEFT = Path(__file__).parents[1] / "data" / "version_0.1"


def replay(server: Server, commands: bytes) -> None:
    """Send all that a server has executed to this one."""
    url = urlsplit(server.url)
    with contextlib.ExitStack() as stack:
        if url.hostname is None:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(url.path)
        else:
            connection = stack.enter_context(socket.create_connection((url.hostname, url.port or 0), timeout=10))
        connection.sendall(commands + b"*1\r\n$4\r\nQUIT\r\n")
        replies = b""
        while part := connection.recv(1 << 16):
            replies += part
    assert not [line for line in replies.split(b"\r\n") if line.startswith(b"-")]


def test_a_query_of_the_version_before_goes_on(server: Server, spark: SparkSession, tmp_path: Path) -> None:
    replay(server, (LEFT / "commands.resp").read_bytes())
    shutil.copytree(LEFT / "checkpoint", tmp_path / "checkpoint")
    with server.client(decode_responses=True) as client:
        assert (client.xlen("out"), client.xpending("in", "g")["pending"]) == (60, 20)
        for n in range(60, 75):
            client.xadd("in", {"n": n}, id=f"{1000 + n}-0")
        writer = (
            spark.readStream.format("rstream")
            .options(url=server.url, streams="in", group="g", startingOffsets="earliest", maxEntriesPerTrigger="20")
            .schema("n long")
            .load()
            .writeStream.format("rstream")
            .options(url=server.url, stream="out", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        run_to_the_end(writer.start)
        assert [int(fields["n"]) for _, fields in client.xrange("out")] == list(range(75))
        assert client.xpending("in", "g")["pending"] == 0
        group = client.xinfo_groups("in")[0]
        assert (group["last-delivered-id"], group["lag"]) == ("1074-0", 0)
