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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import redis

from tools.machine_time import machine_seconds
from tools.waiting import stop, until

_ROOT = Path(__file__).resolve().parents[2]
_PORTS_FOR_TESTS = (10_240, 32_768)  # Linux, macOS and Windows assign none of these ports by themselves
_chance = random.SystemRandom()  # no seed: pytest processes that run in parallel must draw different ports


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
    """A server in a process of its own, which writes its log to a file."""

    process: subprocess.Popen[bytes]
    file: IO[bytes]

    def log(self) -> str:
        """Return the log so far."""
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode()

    def resident(self) -> int:
        """Bytes of its process in memory."""
        return resident(self.process.pid)

    def processor_time(self) -> float:
        """Seconds of processor time that its process has used."""
        return processor_seconds(self.process.pid)


def resident(pid: int) -> int:
    """Return bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def processor_seconds(pid: int) -> float:
    """Return seconds of processor time that a process has used; Linux computes the clock's number from the pid."""
    return time.clock_gettime(~pid << 3 | 2)


def _skip_without(what: str, client: redis.Redis, *command: Any) -> None:
    """Skip a test if the server refuses this command, whose second word is a key."""
    try:
        client.execute_command(*command)
    except redis.ResponseError:
        pytest.skip(f"this server has no {what}: this test did not run on it")
    finally:
        client.delete(command[1])


def skip_without_xnack(client: redis.Redis) -> None:
    """Skip a test of released entries on a server without XNACK."""
    with contextlib.suppress(redis.ResponseError):
        client.xgroup_create("xnack?", "g", mkstream=True)
    _skip_without("XNACK (Redis 8.8)", client, "XNACK", "xnack?", "g", "FAIL", "IDS", 1, "1-1")


def skip_without_idempotent_adds(client: redis.Redis) -> None:
    """Skip a test of XADD IDMP on a server without it."""
    _skip_without("XADD IDMP (Redis 8.6)", client, "XADD", "idmp?", "IDMP", "p", "m", "*", "a", 1)


def skip_without_stream_sizes(client: redis.Redis) -> None:
    """Skip a test of INFO keysizes on a server that does not count streams there."""
    client.xadd("keysizes?", {"a": 1})
    is_counted = any(name.endswith("_distrib_streams_items") for name in client.info("keysizes"))
    client.delete("keysizes?")
    if not is_counted:
        pytest.skip("this server has no streams in INFO keysizes (Redis 8.12): this test did not run on it")


def free_port() -> int:
    """Return a free TCP port of the loopback address, outside the range that the system assigns by itself.

    Spark listens on assigned ports for its Python processes. A client that reconnects to a killed server must not reach
    Spark on that port.
    """
    while True:
        port = _chance.randrange(*_PORTS_FOR_TESTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def redis_server_path() -> str | None:
    """Return the path of redis-server, or None if it is not installed."""
    return shutil.which("redis-server")


KINDS = ["engine", "redis"]


def kind_of_turn(test: str, seed: int) -> str:
    """Choose the server for a test that runs on one server only. Even and odd seeds get different servers."""
    kinds = KINDS if redis_server_path() else KINDS[:1]
    return kinds[(seed + zlib.crc32(test.encode())) % len(kinds)]


# For a test that takes a minute on each server: it runs on the engine only with `scripts/test --long`.
engine_at_length = pytest.mark.parametrize(
    "server", [pytest.param("engine", marks=pytest.mark.long), "redis"], indirect=True
)


def skip_without_redis() -> None:
    """Skip the redis-server leg of a test if redis-server is not installed. -ra prints the reason."""
    if redis_server_path() is None:
        pytest.skip("no redis-server on this machine: the real-server leg of this test did not run")


@contextlib.contextmanager
def started(
    kind: str,
    url: str,
    command: Sequence[str],
    is_ready: Callable[[Served], bool],
    interval: float = 0.01,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Start a server, wait until it is ready, and stop it at the end. interval: seconds between two looks; variables:
    more environment variables. Raises AssertionError with the log if it does not become ready."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), **(variables or {})}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            served = Served(kind, url, process, log)
            until(
                lambda: is_ready(served),
                f"{kind} did not start",
                60,
                alive=lambda: process.poll() is None,
                log=served.log,
                interval=interval,
            )
            yield served
        finally:
            stop(process)


@contextlib.contextmanager
def running_redis(
    *arguments: str, variables: Mapping[str, str] | None = None, program: str | None = None
) -> Iterator[Server]:
    """Start a redis-server on a free port; without persistence, unless the arguments enable it. variables: more
    environment variables; program: its path, if it is not the installed one."""
    path = program or redis_server_path()
    assert path is not None, "redis-server is not installed"
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="rstream-redis-") as directory:
        where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", directory]
        # On a busy machine every command may enter the slow log.
        quiet = ["--save", "", "--appendonly", "no", "--slowlog-log-slower-than", "-1"]
        command = [path, *where, *quiet, *arguments]
        with started("redis", f"redis://127.0.0.1:{port}/0", command, _answers, variables=variables) as served:
            yield Server("redis", served.url)


@contextlib.contextmanager
def running_engine(**options: Any) -> Iterator[Server]:
    """Start the bundled engine in a process of its own. A busy machine gives it longer."""
    from spark_streams.engine import LocalEngine

    class Engine(LocalEngine):
        clock = staticmethod(machine_seconds)

    with Engine(**options) as engine:
        yield Server("engine", engine.url)


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """Start `python -m spark_streams.engine` with these options; on a free port if they name no address."""
    port, address = 0, list[str]()
    if not {"--port", "--unixsocket", "--tls-port"} & set(arguments):
        port = free_port()
        address = ["--port", str(port)]
    command = [sys.executable, "-m", "spark_streams.engine", *arguments, *address]
    with started("engine", f"redis://127.0.0.1:{port}/0", command, lambda one: "ready on" in one.log()) as served:
        yield served


def _answers(served: Served) -> bool:
    with served.client() as client:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return True
