"""Servers that persist every command (fsync always), so that they can be killed: the engine and redis-server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tools.servers.server import free_port, redis_server_path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class DurableServer:
    """A server on its own port that starts again with its data."""

    kind: str
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, and wait until it replies."""
        arguments = [
            "--port",
            str(self.port),
            "--dir",
            str(self.folder),
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ]
        if self.kind == "redis":
            command = [str(redis_server_path()), "--bind", "127.0.0.1", "--save", "", *arguments]
        else:
            command = [sys.executable, "-m", "spark_streams.engine", *arguments]
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})
        deadline = time.monotonic() + 60
        with redis.Redis.from_url(self.url, protocol=2, retry=Retry(NoBackoff(), 0)) as client:
            while True:
                with contextlib.suppress(redis.RedisError):
                    client.ping()
                    return
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
                time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL the server."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server."""
        assert self.process is not None
        self.process.send_signal(number)


@contextlib.contextmanager
def durable_server(kind: str, folder: Path) -> Iterator[DurableServer]:
    """Run such a server."""
    (folder / "server").mkdir(parents=True)
    server = DurableServer(kind, folder / "server", free_port())
    server.start()
    try:
        yield server
    finally:
        server.kill()
