"""Several processes of redis-server on loopback ports: what a cluster and a group with sentinels have in common."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import redis

from tools.servers.server import Server, redis_server_path
from tools.waiting import until

_HELD = 5_000  # milliseconds: the longest time that writers wait for replicas
_SERVER = ("--save", "", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


class Nodes(ABC):
    """Processes by their ports, within a `with`."""

    reply_timeout = 5.0  # seconds that a client of one process waits

    def __init__(self, *options: str, program: Path | None = None) -> None:
        """options: of each server; program: path of another redis-server."""
        self._options, self._program = options, program or redis_server_path()
        self._home = tempfile.TemporaryDirectory(prefix="rstream-nodes-")
        self._directory = Path(self._home.name)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._frozen: set[int] = set()

    def __enter__(self) -> Self:
        """Start all processes, and wait until they are healthy."""
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all processes, frozen ones included."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.wait()
        self._home.cleanup()

    @property
    @abstractmethod
    def url(self) -> str:
        """URL that a user would configure."""

    @abstractmethod
    def _begin(self) -> None: ...

    @property
    def server(self) -> Server:
        """Return the address as a `Server`, for the helpers of other tests."""
        return Server("redis", self.url)

    def client(self, port: int, user: str | None = None, password: str | None = None) -> redis.Redis:
        """A plain client of one process."""
        return redis.Redis(
            port=port,
            username=user,
            password=password,
            protocol=2,
            decode_responses=True,
            socket_timeout=self.reply_timeout,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )

    def is_running(self, port: int) -> bool:
        """Whether the process runs, frozen or not."""
        return self._processes[port].poll() is None

    def answering(self, ports: list[int]) -> Iterator[int]:
        """Yield those of the ports whose processes run and are not frozen."""
        return (port for port in ports if self.is_running(port) and port not in self._frozen)

    def kill(self, port: int) -> None:
        """Send SIGKILL after the process' replicas have caught up."""
        self._let_replicas_catch_up(port)
        self._processes[port].kill()
        self._processes[port].wait()

    def freeze(self, port: int) -> None:
        """Send SIGSTOP after the process' replicas have caught up."""
        self._let_replicas_catch_up(port)
        self._frozen.add(port)
        self._processes[port].send_signal(signal.SIGSTOP)

    def thaw(self, port: int) -> None:
        self._processes[port].send_signal(signal.SIGCONT)
        self._frozen.discard(port)

    def replicas(self, port: int) -> list[dict[str, Any]]:
        """Return what a process says of its replicas."""
        with self.client(port) as client:
            replication = client.info("replication")
        return [replication[f"slave{n}"] for n in range(replication["connected_slaves"])]

    def _start(self, port: int, *more: str) -> None:
        """Start a server."""
        where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
        self._run(port, *where, *_SERVER, "--dbfilename", f"{port}.rdb", *more, *self._options)

    def _run(self, port: int, *arguments: str) -> None:
        assert self._program is not None, "redis-server is not installed"
        log = self._directory / f"{port}.log"
        with log.open("ab") as file:
            self._processes[port] = subprocess.Popen([self._program, *arguments], stdout=file, stderr=file)
        with self.client(port) as client:
            until(client.ping, f"port {port} does not answer", log=log.read_text)

    def _let_replicas_catch_up(self, port: int) -> None:
        """Wait until the replicas of a master have all its writes; pause its writers meanwhile.

        On a busy machine a replica is seconds behind. Writes that it lacks are lost when the master is killed, and such
        losses have tests of their own.
        """
        with self.client(port) as client:
            client.execute_command("CLIENT", "PAUSE", _HELD, "WRITE")
            offset = client.info("replication")["master_repl_offset"]

        def have_all() -> bool:
            return all(one["offset"] >= offset for one in self.replicas(port) if one["state"] == "online")

        until(have_all, "the replicas do not keep up", _HELD / 1000)
