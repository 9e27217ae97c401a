"""One master, two replicas, three sentinels on free ports of the loopback address: started, killed, frozen, healed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from tools.servers.server import Server, free_port, redis_server_path

NAME = "main"
DOWN_AFTER = 1.0  # seconds of silence, then a master counts as down
_HELD = 5_000  # milliseconds that writers wait at most for replicas
_WITHIN = 30.0  # seconds for anything on a busy machine


def until(what: Callable[[], object], why: str, within: float = _WITHIN) -> None:
    """Wait for it; errors of a server that is away are no answer."""
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(redis.RedisError):
            if what():
                return
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def let_replicas_catch_up(client: redis.Redis) -> None:
    """Of a master that is about to be lost. Its writers wait meanwhile: on a busy machine a replica is seconds behind,
    and what it lacks is lost with the master, whoever writes. (Losses have tests of their own.)"""
    client.execute_command("CLIENT", "PAUSE", _HELD, "WRITE")
    offset = client.info("replication")["master_repl_offset"]

    def has_all(told: dict[str, Any]) -> bool:
        replicas = [told[f"slave{n}"] for n in range(told["connected_slaves"])]
        return all(one["offset"] >= offset for one in replicas if one["state"] == "online")

    until(lambda: has_all(client.info("replication")), "the replicas do not keep up", _HELD / 1000)


class Sentinels:
    """All six processes. The servers by their ports; `url` is what a user would write."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = options
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.servers = [free_port() for _ in range(3)]
        self.sentinels = [free_port() for _ in range(3)]
        for port in self.servers:
            master = [] if port == self.servers[0] else ["--replicaof", "127.0.0.1", str(self.servers[0])]
            self._start(port, *master)
        for port in self.sentinels:
            self._configure(port)
            self._start_sentinel(port)
        self.healthy()

    @property
    def url(self) -> str:
        """All sentinels, and the name of the master."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.sentinels)}/{NAME}"

    @property
    def server(self) -> Server:
        """The same, for the helpers of other tests; it has no plain client."""
        return Server("redis", self.url)

    def client(self, port: int, user: str | None = None, password: str | None = None) -> redis.Redis:
        """A plain client of one process."""
        return redis.Redis(
            port=port,
            username=user,
            password=password,
            protocol=2,
            decode_responses=True,
            socket_timeout=2,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )

    def master(self) -> int:
        """The port that the first sentinel which answers names."""
        for port in self.sentinels:
            with contextlib.suppress(redis.RedisError), self.client(port) as client:
                return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])
        raise AssertionError("no sentinel answers")

    @contextlib.contextmanager
    def direct(self) -> Iterator[redis.Redis]:
        """A plain client of the master of now."""
        with self.client(self.master()) as client:
            yield client

    # -- what happens to them -----------------------------------------------------------------------------------

    def kill(self, port: int) -> None:
        """SIGKILL, when its replicas have all that it has."""
        if port not in self.sentinels:
            with self.client(port) as client:
                let_replicas_catch_up(client)
        self._processes[port].kill()
        self._processes[port].wait()

    def freeze(self, port: int) -> None:
        """SIGSTOP, likewise."""
        if port not in self.sentinels:
            with self.client(port) as client:
                let_replicas_catch_up(client)
        self._processes[port].send_signal(signal.SIGSTOP)

    def thaw(self, port: int) -> None:
        self._processes[port].send_signal(signal.SIGCONT)

    def fail_over(self) -> None:
        """SENTINEL FAILOVER: the master lives, and is replaced."""
        with self.client(self.sentinels[0]) as client:
            until(lambda: _allowed(client), "the failover was refused")

    def healthy(self) -> int:
        """Start again what is not running, and wait until all agree: the port of the master."""
        for port, process in self._processes.items():
            if process.poll() is not None:
                if port in self.sentinels:
                    self._start_sentinel(port)
                else:
                    self._start(port, "--replicaof", "127.0.0.1", str(self.master()))
        until(self._is_whole, "the servers did not come together again")
        return self.master()

    def stop(self) -> None:
        """End all, whatever state they are in."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.wait()

    def _is_whole(self) -> bool:
        named = set()
        for port in self.sentinels:
            with self.client(port) as client:
                state = client.execute_command("SENTINEL", "MASTERS")[0]
                told = dict(zip(state[::2], state[1::2], strict=True)) if isinstance(state, list) else state
                named.add((told["port"], told["config-epoch"], told["flags"]))
                replicas, others = int(told["num-slaves"]), int(told["num-other-sentinels"])
                if (replicas, others) != (2, 2):
                    return False
        if len(named) > 1 or next(iter(named))[2] != "master":
            return False
        with self.direct() as client:
            told = client.info("replication")
            states = [told[f"slave{n}"]["state"] for n in range(told["connected_slaves"])]
            return told["role"] == "master" and states == ["online", "online"]

    # -- processes ----------------------------------------------------------------------------------------------

    def _configure(self, port: int) -> None:
        """failover-timeout: the next one is allowed after twice that."""
        (self._directory / f"{port}.conf").write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self._directory}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self.servers[0]} 2\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER * 1000:.0f}\n"
            f"sentinel failover-timeout {NAME} 2000\n"
            f"sentinel parallel-syncs {NAME} 2\n"
        )

    def _start_sentinel(self, port: int) -> None:
        self._run(port, str(self._directory / f"{port}.conf"), "--sentinel")

    def _start(self, port: int, *more: str) -> None:
        where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
        fast = ["--save", "", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
        self._run(port, *where, *fast, "--dbfilename", f"{port}.rdb", *self._options, *more)

    def _run(self, port: int, *arguments: str) -> None:
        path = redis_server_path()
        assert path is not None, "redis-server is not installed"
        log = (self._directory / f"{port}.log").open("ab")
        with log:
            self._processes[port] = subprocess.Popen([path, *arguments], stdout=log, stderr=log)
        with self.client(port) as client:
            until(client.ping, f"port {port} does not answer: {(self._directory / f'{port}.log').read_text()[-2000:]}")


def _allowed(client: redis.Redis) -> bool:
    try:
        client.execute_command("SENTINEL", "FAILOVER", NAME)
    except redis.ResponseError as error:
        if not str(error).startswith(("INPROG", "NOGOODSLAVE")):  # one has just been, or no replica is good enough yet
            raise
        return False
    return True


@contextlib.contextmanager
def running_sentinels(*options: str) -> Iterator[Sentinels]:
    """All of them, stopped at the end. options: of the servers."""
    with tempfile.TemporaryDirectory(prefix="rstream-sentinel-") as directory:
        made = Sentinels(Path(directory), *options)
        try:
            yield made
        finally:
            made.stop()
