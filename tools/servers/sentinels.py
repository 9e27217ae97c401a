"""One master, two replicas, three sentinels on loopback ports: start, kill, freeze and restart them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis

from tools.servers.nodes import Nodes
from tools.servers.server import free_port
from tools.waiting import until

NAME = "main"
DOWN_AFTER = 1.0  # seconds of silence, then a master counts as down


class Sentinels(Nodes):
    """All six processes."""

    reply_timeout = 2.0

    def _begin(self) -> None:
        self.servers, self.sentinels = ([free_port() for _ in range(3)] for _ in range(2))
        for port in self.servers:
            self._start(port, *([] if port == self.servers[0] else ["--replicaof", "127.0.0.1", str(self.servers[0])]))
        for port in self.sentinels:
            self._configure(port)
            self._start_sentinel(port)
        self.healthy()

    @property
    def url(self) -> str:
        """URL of all sentinels, with the name of the master."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.sentinels)}/{NAME}"

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
        return [one["state"] for one in self.replicas(self.master())] == ["online", "online"]

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

    def _let_replicas_catch_up(self, port: int) -> None:
        if port in self.servers:
            super()._let_replicas_catch_up(port)


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


running_sentinels = Sentinels
