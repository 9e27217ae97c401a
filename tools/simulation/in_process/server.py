"""A server of kind `process`, and the commands of redis-py without its connections: the test's own client of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import hiredis
import redis
from redis.connection import Encoder

from tools.servers.server import Server
from tools.simulation.in_process.core import Core

_encoder = Encoder("utf-8", "strict", False)


class _ReplyError(Exception):
    """An error reply as a value."""


class CoreClient(redis.Redis):
    """A client of redis-py whose commands run in the core. It is the same client for all engines of the core."""

    def __init__(self, core: Core, decode_responses: bool = False) -> None:
        super().__init__(protocol=2, driver_info=None)  # which looks up the version of redis-py each time
        self._core = core
        encoding: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"} if decode_responses else {}
        self._reader = hiredis.Reader(replyError=_ReplyError, **encoding)
        self._client = core.engine.connect("127.0.0.1:2", "127.0.0.1:2")

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command. Raises redis-py's error for an error reply."""
        reply = self._reply_to(args)
        if isinstance(reply, _ReplyError):
            raise redis.ResponseError(str(reply))
        options.pop("keys", None)
        parse = self.response_callbacks.get(args[0])
        return reply if parse is None else parse(reply, **options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        """Return a pipeline. Its commands run when it is executed, one after the other."""
        assert not transaction, "the simulation needs no transactions"
        return _Pipeline(self)

    def close(self) -> None:
        """There is no connection."""

    def _reply_to(self, args: tuple[Any, ...]) -> Any:
        words = [*str(args[0]).encode().split(), *map(_encoder.encode, args[1:])]
        core = self._core
        if core.engine.clients.get(self._client.id) is not self._client:  # a new engine
            self._client = core.engine.connect("127.0.0.1:2", "127.0.0.1:2")
        out: list[bytes] = []
        core.run(self._client, [words], out)
        reply = b"".join(out)
        core.digest.update(b"0<%b\n0>%b" % (b" ".join(words), reply))
        self._reader.feed(reply)
        return self._reader.gets()


class _Pipeline:
    def __init__(self, client: CoreClient) -> None:
        self._client = client
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *args: Any) -> Self:
        self._commands.append(args)
        return self

    def execute(self) -> list[Any]:
        commands, self._commands = self._commands, []
        return [self._client.execute_command(*command) for command in commands]


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessServer(Server):
    """The engine's core in this process. Its URL names no machine: only a patched product reaches it (patches.py)."""

    kind: str = "process"
    url: str = "redis://process:1/0"
    core: Core = field(default_factory=Core)

    def another(self) -> ProcessServer:
        """Start one more server on the plan's clock. It ends when the next plan begins."""
        url = f"redis://process:{2 + len(self.core.others)}/0"
        return ProcessServer(url=url, core=self.core.another(url))

    def client(self, **options: Any) -> redis.Redis:
        """A client with the commands of redis-py. decode_responses: replies are text."""
        return CoreClient(self.core, **options)
