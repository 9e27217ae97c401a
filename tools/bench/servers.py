"""The servers that are compared: the engine, redis-server and fakeredis, each in its own process on a TCP port."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.bench.client import RawClient
from tools.stopping import stop

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

    def client(self) -> RawClient:
        """Return a new raw client."""
        return RawClient(self.port)

    def resident(self) -> int:
        """Return bytes of private memory of its process."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
        return 0


def have_redis() -> bool:
    """Whether redis-server and redis-benchmark are installed."""
    return bool(shutil.which("redis-server") and shutil.which("redis-benchmark"))


def have_fakeredis() -> bool:
    """Whether fakeredis is installed."""
    try:
        import fakeredis  # noqa: F401
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def running(kind: str, *options: str) -> Iterator[Running]:
    """Start an empty server of this kind in an empty directory, and stop it at the end."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="rstream-bench-") as directory:
        arguments = ["--port", str(port), "--dir", directory, *options]
        command = {
            "engine": [sys.executable, "-m", "spark_streams.engine", *arguments],
            "redis-server": ["redis-server", "--save", "", *arguments],
            "fakeredis": [sys.executable, "-c", _FAKE.format(port=port)],
        }[kind]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        ) as process:
            try:
                _wait(port, process)
                yield Running(kind, port, process.pid)
            finally:
                stop(process)


def first_pong(kind: str) -> float:
    """Return milliseconds from the start of the process to its first PONG."""
    started = time.perf_counter()
    with running(kind):
        return (time.perf_counter() - started) * 1000


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as probe:
            probe.sendall(b"*1\r\n$4\r\nPING\r\n")
            if probe.recv(64).startswith(b"+PONG"):
                return
        time.sleep(0.002)
    raise RuntimeError(f"the server on port {port} did not answer PING within 15 s (exit code: {process.poll()})")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
