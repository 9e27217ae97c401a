"""One master, two replicas, three sentinels on loopback ports: start, kill, freeze and restart them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tools.servers.server import Server, free_port, redis_server_path
from tools.waiting import until

NAME = "main"
DOWN_AFTER = 1.0  # seconds of silence, then a master counts as down
_HELD = 5_000  # milliseconds: the longest time that writers wait for replicas


def let_replicas_catch_up(client: redis.Redis) -> None:
    """Wait until the replicas of this master have all its writes; pause its writers meanwhile.

    On a busy machine a replica is seconds behind. Writes that it lacks are lost when the master is killed, and such
    losses have tests of their own.
    """
    client.execute_command("CLIENT", "PAUSE", _HELD, "WRITE")
    offset = client.info("replication")["master_repl_offset"]

    def has_all(replication: dict[str, Any]) -> bool:
        replicas = [replication[f"slave{n}"] for n in range(replication["connected_slaves"])]
        return all(replica["offset"] >= offset for replica in replicas if replica["state"] == "online")

    until(lambda: has_all(client.info("replication")), "the replicas do not keep up", _HELD / 1000)


class Sentinels:
    """All six processes, by their ports. `url` is the URL that a user would configure."""

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
        """URL of all sentinels, with the name of the master."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.sentinels)}/{NAME}"

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
            socket_timeout=2,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )

    def master(self) -> int:
        """Return the master's port, as the first sentinel that answers reports it."""
        for port in self.sentinels:
            with contextlib.suppress(redis.RedisError), self.client(port) as client:
                return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])
        raise AssertionError("no sentinel answers")

    @contextlib.contextmanager
    def direct(self) -> Iterator[redis.Redis]:
        """Open a plain client of the present master."""
        with self.client(self.master()) as client:
            yield client

    # -- faults and changes ------------------------------------------------------------------------------------

    def kill(self, port: int) -> None:
        """Send SIGKILL; if it is a server, after its replicas have caught up."""
        if port not in self.sentinels:
            with self.client(port) as client:
                let_replicas_catch_up(client)
        self._processes[port].kill()
        self._processes[port].wait()

    def freeze(self, port: int) -> None:
        """Send SIGSTOP; if it is a server, after its replicas have caught up."""
        if port not in self.sentinels:
            with self.client(port) as client:
                let_replicas_catch_up(client)
        self._processes[port].send_signal(signal.SIGSTOP)

    def thaw(self, port: int) -> None:
        self._processes[port].send_signal(signal.SIGCONT)

    def fail_over(self) -> None:
        """Replace the running master by SENTINEL FAILOVER."""
        with self.client(self.sentinels[0]) as client:
            until(lambda: _allowed(client), "the failover was refused")

    def healthy(self) -> int:
        """Start the processes that do not run, and wait until all agree. Return the master's port."""
        for port, process in self._processes.items():
            if process.poll() is not None:
                if port in self.sentinels:
                    self._start_sentinel(port)
                else:
                    self._start(port, "--replicaof", "127.0.0.1", str(self.master()))
        until(self._is_whole, "the sentinels and servers did not become healthy again")
        return self.master()

    def stop(self) -> None:
        """Stop all processes, frozen ones included."""
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
                master = dict(zip(state[::2], state[1::2], strict=True)) if isinstance(state, list) else state
                named.add((master["port"], master["config-epoch"], master["flags"]))
                replicas, other_sentinels = int(master["num-slaves"]), int(master["num-other-sentinels"])
                if (replicas, other_sentinels) != (2, 2):
                    return False
        if len(named) > 1 or next(iter(named))[2] != "master":
            return False
        with self.direct() as client:
            replication = client.info("replication")
            states = [replication[f"slave{n}"]["state"] for n in range(replication["connected_slaves"])]
            return replication["role"] == "master" and states == ["online", "online"]

    # -- processes ----------------------------------------------------------------------------------------------

    def _configure(self, port: int) -> None:
        """Write the configuration of a sentinel. The next failover is allowed after twice failover-timeout."""
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
        if not str(error).startswith(
            ("INPROG", "NOGOODSLAVE")
        ):  # a failover runs or has just ended, or no replica is suitable yet
            raise
        return False
    return True


@contextlib.contextmanager
def running_sentinels(*options: str) -> Iterator[Sentinels]:
    """Start all six processes, and stop them at the end. options: of the servers."""
    with tempfile.TemporaryDirectory(prefix="rstream-sentinel-") as directory:
        sentinels = Sentinels(Path(directory), *options)
        try:
            yield sentinels
        finally:
            sentinels.stop()
