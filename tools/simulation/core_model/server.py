"""The servers of the histories: the engine's core in this process, or any server by its URL."""

from __future__ import annotations

import time
from typing import Any, Protocol

import hiredis

from tools.simulation.in_process.core import Core
from tools.simulation.in_process.server import ProcessServer

_COMMAND_NS = 1_000_000  # so that two deliveries never have the same time in milliseconds


class HistoryServer(Protocol):
    """What a history asks of its server. has_xnack: whether it knows XNACK."""

    has_xnack: bool

    def begin(self, seed: int) -> None:
        """Start a history. It deletes its own keys."""

    def run(self, commands: list[list[Any]], raw: bool = False) -> list[Any]:
        """Run one command, or several as one step. Errors are returned. raw: bulk strings stay bytes."""

    def pause(self) -> None:
        """Let a later delivery have a later time."""


class InProcess:
    """The engine's core in this process (tools.simulation.in_process), with one clock for server and product."""

    has_xnack = True

    def __init__(self) -> None:
        self.server = ProcessServer(core=Core())
        self._readers = {raw: hiredis.Reader(**({} if raw else {"encoding": "utf-8"})) for raw in (False, True)}

    @property
    def core(self) -> Core:
        """The core, which the product is patched to."""
        return self.server.core

    def begin(self, seed: int) -> None:
        self.core.begin(seed)
        self._client = self.core.engine.connect("world", "world")

    def run(self, commands: list[list[Any]], raw: bool = False) -> list[Any]:
        replies = []
        reader = self._readers[raw]
        for command in commands:
            self.core.clock.pass_ns(_COMMAND_NS)
            out: list[bytes] = []
            self.core.run(self._client, [[w if isinstance(w, bytes) else str(w).encode() for w in command]], out)
            reader.feed(b"".join(out))
            replies.append(reader.gets())
        return replies

    def pause(self) -> None:
        self.core.clock.pass_ns(5 * _COMMAND_NS)


class RedisServer:
    """Any server, by redis-py. Only the model runs on it."""

    def __init__(self, url: str) -> None:
        import redis

        self._clients = {raw: redis.Redis.from_url(url, decode_responses=not raw, protocol=2) for raw in (False, True)}
        for client in self._clients.values():
            client.response_callbacks.clear()
        self._errors = redis.ResponseError
        self.has_xnack = "unknown command" not in str(self.run([["XNACK", "x"]])[0])

    def begin(self, seed: int) -> None:
        pass

    def run(self, commands: list[list[Any]], raw: bool = False) -> list[Any]:
        if len(commands) == 1:
            try:
                return [self._clients[raw].execute_command(*commands[0])]
            except self._errors as error:
                return [error]
        pipeline = self._clients[raw].pipeline(transaction=True)
        for command in commands:
            pipeline.execute_command(*command)
        return list(pipeline.execute(raise_on_error=False))

    def pause(self) -> None:
        time.sleep(0.002)
