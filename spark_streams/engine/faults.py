"""Faults that a test sets in a running engine (DEBUG FAULT): refused commands, closed connections, slow answers.

While no fault is set, the engine runs no line of this module: setting one replaces `Engine.execute`. DEBUG itself is
not affected. Commands within EXEC run as EXEC does: all of them, or none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spark_streams.engine.command_table import COMMANDS, Command, find, find_by_name
from spark_streams.engine.resp.wire_replies import CommandError, Reply, encode

if TYPE_CHECKING:
    from spark_streams.engine.access_guard import AccessGuard
    from spark_streams.engine.client import Client
    from spark_streams.engine.resp.xadd_batch import XaddBatch


class FaultyEngine(Protocol):
    """What a fault needs of the engine."""

    access: AccessGuard
    in_transaction: bool
    disconnect: Callable[[Client], None]
    send: Callable[[Client, Reply], None]

    def execute_plain(self, client: Client, args: list[bytes]) -> Reply | None: ...

    def refuse(
        self, client: Client, args: list[bytes], failure: CommandError, spec: Command | None, running: bool
    ) -> bytes: ...


class Refusal(NamedTuple):
    """A state in which a server refuses commands."""

    text: str  # the error
    flag: str  # of the refused commands, "" for all
    allowed: frozenset[str] = frozenset()  # names of commands that it does not refuse
    unless: str = ""  # flag of commands that it does not refuse
    refuses_to_queue: bool = False  # refuses every command between MULTI and EXEC


# The texts and the commands are those of Redis 7 (fact R45).
REFUSALS = {
    b"oom": Refusal("OOM command not allowed when used memory > 'maxmemory'.", "denyoom", refuses_to_queue=True),
    b"loading": Refusal("LOADING Redis is loading the dataset in memory", "", unless="loading"),
    b"readonly": Refusal("READONLY You can't write against a read only replica.", "write"),
    b"noreplicas": Refusal("NOREPLICAS Not enough good replicas to write.", "write"),
    b"busy": Refusal(
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "",
        frozenset(
            {"auth", "hello", "quit", "reset", "multi", "discard", "watch", "unwatch", "shutdown", "script|kill"}
        ),
    ),
}
# Commands with which a client sets up a connection. They are not counted until one is closed.
_SET_UP = frozenset({"hello", "auth", "select", "client|setinfo", "client|setname"})
_NEVER_QUEUED = frozenset({"exec", "discard", "multi", "quit", "reset"})


class Faults:
    """The faults of one engine; at most one of each kind."""

    def __init__(self, engine: FaultyEngine) -> None:
        self._engine = engine
        self._plain_send = engine.send
        self.refusal: Refusal | None = None
        self.delay_ms = 0
        self.commands: int | None = None  # commands of all clients until a connection is closed
        self.closes_before = False  # close before the command has had its effect
        self.bytes: int | None = None  # bytes of replies until a connection is closed

    def begin(self) -> None:
        """Let the faults take effect."""
        self._engine.__dict__["execute"] = self._execute
        self._engine.__dict__["_run_batch"] = self._run_no_batch
        self._engine.send = self._send

    def end(self) -> None:
        """End all faults."""
        self._engine.send = self._plain_send
        self.__init__(self._engine)  # type: ignore[misc]
        for name in ("execute", "_run_batch"):
            self._engine.__dict__.pop(name, None)

    def check_refusal(self, client: Client, args: list[bytes]) -> None:
        """Raise CommandError if the state refuses this command, also if a script runs it."""
        spec = find_by_name(args)
        if self.refusal is None or spec is None:
            return
        if spec.name == "exec":
            xadd = COMMANDS[b"xadd"]
            queue = [find(request) if isinstance(request, list) else xadd for request in client.queue or ()]
            if any(applies(self.refusal, queued) for queued in [spec, *queue]):
                client.leave_transaction()
                raise CommandError(f"EXECABORT Transaction discarded because of: {self.refusal.text}")
        elif applies(self.refusal, spec) or (
            self.refusal.refuses_to_queue and client.queue is not None and spec.name not in _NEVER_QUEUED
        ):
            raise CommandError(self.refusal.text)

    def _run_no_batch(self, _client: Client, _batch: XaddBatch) -> None:
        """Let the commands of a batch run one by one."""

    def _execute(self, client: Client, args: list[bytes]) -> Reply | None:
        engine = self._engine
        spec = find_by_name(args)
        if engine.in_transaction or (spec is not None and spec.name.startswith("debug")):
            return engine.execute_plain(client, args)
        if self.delay_ms:
            time.sleep(self.delay_ms / 1000)
        closes = (spec is None or spec.name not in _SET_UP) and self._count_command()
        if closes and self.closes_before:
            self._close(client)
            return None
        try:
            if spec is not None and not engine.access.must_authenticate(client):
                spec.check_arity(len(args))
                self.check_refusal(client, args)
            reply = engine.execute_plain(client, args)
        except CommandError as failure:
            reply = engine.refuse(client, args, failure, spec, running=False)
        if closes:
            self._close(client)
            return None
        return reply if self.bytes is None or reply is None else self._cut(client, encode(reply, client.resp))

    def _send(self, client: Client, reply: Reply) -> None:
        """Send the reply of a client that was blocked."""
        self._plain_send(client, reply if self.bytes is None else self._cut(client, encode(reply, client.resp)))

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


def applies(refusal: Refusal, spec: Command) -> bool:
    """Whether a server in this state refuses the command."""
    if spec.name in refusal.allowed or refusal.unless in spec.flags:
        return False
    return not refusal.flag or refusal.flag in spec.flags
