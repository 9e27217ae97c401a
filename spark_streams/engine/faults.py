"""Faults that a test sets in a running engine (DEBUG FAULT): refused commands, closed connections, slow answers.

While no fault is set, the engine runs no line of this module: setting one replaces `Engine.execute`. DEBUG itself and
the commands within EXEC are not affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spark_streams.engine.command_table import Command, find_by_name
from spark_streams.engine.resp.replies import CommandError, Reply, encode

if TYPE_CHECKING:
    from spark_streams.engine.client import Client
    from spark_streams.engine.resp.xadd_batch import XaddBatch


class Engine(Protocol):
    """What a fault needs of the engine."""

    in_transaction: bool
    disconnect: Callable[[Client], None]

    def execute_plain(self, client: Client, args: list[bytes]) -> Reply | None: ...

    def refuse(
        self, client: Client, args: list[bytes], failure: CommandError, spec: Command | None, running: bool
    ) -> bytes: ...


class Refusal(NamedTuple):
    """A state in which a server refuses commands. flag: of the refused commands, `` for all; allowed: names of commands
    that it does not refuse."""

    text: str
    flag: str
    allowed: frozenset[str] = frozenset()
    unless: str = ""  # flag of commands that it does not refuse


# The texts and the commands are those of Redis 8.
REFUSALS = {
    b"oom": Refusal("OOM command not allowed when used memory > 'maxmemory'.", "denyoom"),
    b"loading": Refusal("LOADING Redis is loading the dataset in memory", "", unless="loading"),
    b"readonly": Refusal("READONLY You can't write against a read only replica.", "write"),
    b"noreplicas": Refusal("NOREPLICAS Not enough good replicas to write.", "write"),
    b"busy": Refusal(
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "",
        frozenset({"auth", "hello", "quit", "reset", "multi", "discard", "watch", "unwatch", "shutdown"}),
    ),
}


class Faults:
    """The faults of one engine; at most one of each kind."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.refusal: Refusal | None = None
        self.delay_ms = 0
        self.commands: int | None = None  # commands of all clients until a connection is closed
        self.closes_before = False  # close before the command has had its effect
        self.bytes: int | None = None  # bytes of replies until a connection is closed

    def begin(self) -> None:
        """Let the faults take effect."""
        self._engine.__dict__["execute"] = self._execute
        self._engine.__dict__["_run_batch"] = self._run_no_batch

    def end(self) -> None:
        """End all faults."""
        self.__init__(self._engine)  # type: ignore[misc]
        for name in ("execute", "_run_batch"):
            self._engine.__dict__.pop(name, None)

    def _run_no_batch(self, _client: Client, _batch: XaddBatch) -> None:
        """Let the commands of a batch run one by one."""

    def _execute(self, client: Client, args: list[bytes]) -> Reply | None:
        engine = self._engine
        spec = find_by_name(args)
        if engine.in_transaction or (spec is not None and spec.name.startswith("debug")):
            return engine.execute_plain(client, args)
        if self.delay_ms:
            time.sleep(self.delay_ms / 1000)
        closes = self._count_command()
        if closes and self.closes_before:
            self._close(client)
            return None
        if self.refusal is not None and spec is not None and _applies(self.refusal, spec):
            reply: Reply | None = engine.refuse(client, args, CommandError(self.refusal.text), spec, running=False)
        else:
            reply = engine.execute_plain(client, args)
        if closes:
            self._close(client)
            return None
        return reply if self.bytes is None or reply is None else self._cut(client, encode(reply, client.resp))

    def _count_command(self) -> bool:
        """Count a command. Return whether its connection is to be closed."""
        if self.commands is None:
            return False
        self.commands -= 1
        if self.commands > 0:
            return False
        self.commands = None
        return True

    def _close(self, client: Client) -> None:
        """Close the connection. Replies that were not sent are lost."""
        client.closing = True
        self._engine.disconnect(client)

    def _cut(self, client: Client, reply: bytes) -> bytes:
        """Return the part of the reply that may still be sent. The connection is closed behind it."""
        assert self.bytes is not None
        if len(reply) <= self.bytes:
            self.bytes -= len(reply)
            return reply
        reply, self.bytes = reply[: self.bytes], None
        client.closing = True
        return reply


def _applies(refusal: Refusal, spec: Command) -> bool:
    if spec.name in refusal.allowed or refusal.unless in spec.flags:
        return False
    return not refusal.flag or refusal.flag in spec.flags
