"""Servers for tests: the bundled engine and a real redis-server, each on an address of its own, stopped at the end."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import redis

_NOT_GIVEN_AWAY = (10_240, 32_768)  # ports that Linux, macOS and Windows do not give to who asks for any
_chance = random.SystemRandom()  # not by a seed, with which pytests beside this one would take the same


@dataclass(frozen=True)
class Server:
    """A running server: its kind (`engine` or `redis`) and its URL."""

    kind: str
    url: str

    def client(self, **options: Any) -> redis.Redis:
        """A plain redis-py client; RESP2 unless `protocol=3` is given."""
        return redis.Redis.from_url(self.url, **{"protocol": 2, **options})


@dataclass(frozen=True)
class Served(Server):
    """An engine that was started with options."""

    process: subprocess.Popen[bytes]
    file: IO[bytes]

    def log(self) -> str:
        """What it has logged so far."""
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode()

    def resident(self) -> int:
        """Bytes of its process in memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def processor_time(self) -> float:
        """Seconds of processor time that its process has used; Linux computes the clock's number from the pid."""
        return time.clock_gettime(~self.process.pid << 3 | 2)


def counts_entries(client: redis.Redis) -> bool:
    """Whether its streams count what they were given, and groups what they have read: all but Redis before 7.0."""
    told = client.info("server")
    return "valkey_version" in told or int(told["redis_version"].split(".")[0]) >= 7


def skip_where_nothing_is_counted(client: redis.Redis) -> None:
    """For a test that would fail before the query's refusal by name is met."""
    if not counts_entries(client):
        pytest.skip("queries do not read from Redis before 7.0")


def skip_without_xnack(client: redis.Redis) -> None:
    """For a test of released entries: XNACK came with Redis 8.8."""
    with contextlib.suppress(redis.ResponseError):
        client.xgroup_create("xnack?", "g", mkstream=True)
    try:
        client.execute_command("XNACK", "xnack?", "g", "FAIL", "IDS", 1, "1-1")
    except redis.ResponseError:
        pytest.skip("this server has no XNACK (Redis 8.8): the released entries of this test are not tested on it")
    finally:
        client.delete("xnack?")


def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago.

    It is none that the system gives away by itself: Spark listens on such for its Python processes, and a client that
    looks for a server which was killed would be taken for one of them.
    """
    while True:
        port = _chance.randrange(*_NOT_GIVEN_AWAY)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def redis_server_path() -> str | None:
    """Where redis-server is installed, or None."""
    return shutil.which("redis-server")


KINDS = ["engine", "redis"]


def kind_of_turn(test: str, seed: int) -> str:
    """The server that a test has where it runs on one: an even seed's is the other one than an odd seed's."""
    kinds = KINDS if redis_server_path() else KINDS[:1]
    return kinds[(seed + zlib.crc32(test.encode())) % len(kinds)]


# For a test that takes a minute a server, and does to both the same: what it does to the engine is a matter of
# `scripts/test --long`.
engine_at_length = pytest.mark.parametrize(
    "server", [pytest.param("engine", marks=pytest.mark.long), "redis"], indirect=True
)


def skip_without_redis() -> None:
    """Where redis-server cannot be installed, its leg of a test is skipped; -ra prints this reason for each."""
    if redis_server_path() is None:
        pytest.skip("no redis-server on this machine: the real-server leg of this test did not run")


@contextlib.contextmanager
def running_redis(*arguments: str) -> Iterator[Server]:
    """A real redis-server on a free port, without persistence unless the arguments ask for it."""
    path = redis_server_path()
    assert path is not None, "redis-server is not installed"
    for attempt in range(5):
        port = free_port()
        with tempfile.TemporaryDirectory(prefix="rstream-redis-") as directory:
            where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", directory]
            # On a busy machine any command may be a slow one.
            quiet = ["--save", "", "--appendonly", "no", "--slowlog-log-slower-than", "-1"]
            command = [path, *where, *quiet, *arguments]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
                try:
                    server = Server("redis", f"redis://127.0.0.1:{port}/0")
                    if _answers(server, process):
                        yield server
                        return
                finally:
                    process.terminate()
                output = process.stdout.read().decode() if process.stdout else ""
        if attempt == 4:
            raise RuntimeError(f"redis-server did not start:\n{output}")


@contextlib.contextmanager
def running_engine(**options: Any) -> Iterator[Server]:
    """The bundled engine in a process of its own."""
    from spark_streams.engine import LocalEngine

    with LocalEngine(**options) as engine:
        yield Server("engine", engine.url)


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """`python -m spark_streams.engine` with these options; on a free port unless they say where."""
    root = Path(__file__).parents[2]
    words = list(arguments)
    port = 0
    if not {"--port", "--unixsocket", "--tls-port"} & set(words):
        port = free_port()
        words += ["--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "spark_streams.engine", *words],
            env={**os.environ, "PYTHONPATH": str(root)}, stderr=log,
        )  # fmt: skip
        served = Served("engine", f"redis://127.0.0.1:{port}/0", process, log)
        try:
            deadline = time.monotonic() + 60
            while "ready on" not in served.log():
                assert process.poll() is None, served.log()
                assert time.monotonic() < deadline, served.log()
                time.sleep(0.01)
            yield served
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(server: Server, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 60
    with server.client() as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                return bool(client.ping())
            except redis.AuthenticationError:
                return True
            except redis.RedisError:
                time.sleep(0.02)
    return False
