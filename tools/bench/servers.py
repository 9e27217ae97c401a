"""The servers that are compared: the engine, redis-server and fakeredis, each in its own process on a TCP port."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.client import RawClient
from tools.servers.server import free_port, started

_FAKE = """
import fakeredis
from fakeredis._clients import _tcp_server
# With Nagle's algorithm every pipeline waits 44 ms for an acknowledgement.
_tcp_server.TCPFakeRequestHandler.disable_nagle_algorithm = True
fakeredis.TcpFakeServer(("127.0.0.1", {port})).serve_forever()
"""


@dataclass(frozen=True)
class Running:
    """A server under test."""

    kind: str
    port: int
    pid: int

    @property
    def url(self) -> str:
        """URL that a user would configure."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> RawClient:
        """Return a new raw client."""
        return RawClient(self.port)

    def call(self, *words: Any) -> Any:
        """Return the reply to one command, on a connection of its own."""
        with self.client() as client:
            return client.call(*words)

    def resident(self) -> int:
        """Return bytes of private memory of its process."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
        return 0


def have_redis() -> bool:
    """Whether redis-server and redis-benchmark are installed."""
    return bool(shutil.which("redis-server") and shutil.which("redis-benchmark"))


@contextlib.contextmanager
def running(kind: str, *options: str) -> Iterator[Running]:
    """Start an empty server of this kind in an empty directory, and stop it at the end."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="rstream-bench-") as directory:
        arguments = ["--port", str(port), "--dir", directory, *options]
        command = {
            "engine": [sys.executable, "-m", "spark_streams.engine", *arguments],
            "redis-server": ["redis-server", "--save", "", *arguments],
            "fakeredis": [sys.executable, "-c", _FAKE.format(port=port)],
        }[kind]
        with started(kind, f"redis://127.0.0.1:{port}/0", command, lambda _: _answers(port), interval=0.002) as served:
            yield Running(kind, port, served.process.pid)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), RawClient(port) as client:
        return bool(client.call("PING") == b"PONG")
    return False


def first_pong(kind: str) -> float:
    """Return milliseconds from the start of the process to its first PONG."""
    started = time.perf_counter()
    with running(kind):
        return (time.perf_counter() - started) * 1000
