"""The engine without sockets: databases, clients, configuration, and running one command after the other.

The server reads bytes, calls `run` with the commands of one socket read, and writes what `run` put out. Time comes in
through `clock` and is read once per socket read, so all commands of a pipelined chunk share a millisecond.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from typing import TypeAlias

from spark_streams.engine.access import HTTP_REQUEST, HTTP_WORDS, Guard, HttpRequestError
from spark_streams.engine.blocking import Waiters
from spark_streams.engine.client import REPLY_OFF, REPLY_ON, REPLY_SKIP_NEXT, REPLY_SKIPPING, Client, Waiter
from spark_streams.engine.command_table import COMMANDS, Command, find, named_by
from spark_streams.engine.journal import Journal
from spark_streams.engine.persistence.append_only import Persistence
from spark_streams.engine.resp.replies import QUEUED, CommandError, Reply, error
from spark_streams.engine.resp.requests import Request
from spark_streams.engine.resp.xadd_batch import Aside, Shapes, XaddBatch
from spark_streams.engine.settings.config import Config
from spark_streams.engine.store.keyspace import Database
from spark_streams.engine.store.memory import MemoryGauge
from spark_streams.engine.store.node_limits import NodeLimits

REDIS_VERSION = "8.10.0"  # the newest version whose stream commands are all here
DATABASES = 16
_FAST_RUN = 16  # fast commands between two looks at the clock, which takes about a tenth of such a command's time

# Carries out a batch of XADDs as one; None, and nothing is done, where they must be run one by one.
AddBatch: TypeAlias = "Callable[[Engine, Client, XaddBatch], bytes | None]"

log = logging.getLogger("rstream.engine")


def unix_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


class Engine:
    """All state of one engine process. launch/assembly.py makes one."""

    def __init__(self, add_batch: AddBatch, clock: Callable[[], int] = unix_ms) -> None:
        self.clock = clock
        self.now = clock()
        self.started = self.now
        self.node_limits = NodeLimits()
        self.loading = False  # while the append-only file is read back, nothing expires
        self.journal: Journal | None = None  # set while changes are written down
        self.wake: Callable[[], None] = lambda: None  # end the server's waiting; safe in any thread
        self.breathe: Callable[[], None] = lambda: None  # serve who asks meanwhile; set by the server
        self.config = Config(self.node_limits)
        self.persistence = Persistence(self)
        self.databases = [Database(number, lambda: 0 if self.loading else self.now) for number in range(DATABASES)]
        for db in self.databases:
            db.expired = self._expired
        self.memory = MemoryGauge(self.databases)
        self.access = Guard(self.config, self.memory)
        self.clients: dict[int, Client] = {}
        self.next_client = 1
        self.waiters = Waiters(self._deliver)
        self.send: Callable[[Client, Reply], None] = lambda client, reply: None  # set by the server
        self.disconnect: Callable[[Client], None] = lambda client: None  # set by the server
        self.describe_buffers: Callable[[Client], tuple[int, int]] = lambda client: (0, 0)  # set by the server
        self.in_transaction = False
        self.stopping = False
        self.run_id = os.urandom(20).hex()
        self.commands_processed = 0
        self.connections_received = 0
        self.connections_rejected = 0
        self.keys_expired = 0
        self.active_expire = True  # DEBUG SET-ACTIVE-EXPIRE
        self.errors: dict[str, int] = {}
        self.error_replies = 0
        self._add_batch = add_batch
        self._xadd = COMMANDS[b"xadd"]
        self.shapes = Shapes(make=Aside())
        self._known: dict[bytes, Command] = {}
        self._timed: Command | None = None  # what time is counted for
        self._timed_since = 0
        self._may_be_long = False  # this call of `run` has run more than fast commands

    def set_loading(self, loading: bool) -> None:
        """The append-only file is being read back, or is so no more."""
        self.loading = loading
        self.access.set_loading(loading)

    def tick(self) -> int:
        """Read the clock."""
        self.now = self.clock()
        return self.now

    def connect(self, address: str, laddr: str) -> Client:
        """A new client."""
        client = Client(self.next_client, self.databases[0], address, laddr, self.now)
        client.authenticated = not self.access.closed
        self.next_client += 1
        self.clients[client.id] = client
        self.connections_received += 1
        return client

    def forget(self, client: Client) -> None:
        """The client is gone."""
        if client.waiter is not None:
            self.waiters.remove(client.waiter)
        client.unwatch()
        self.clients.pop(client.id, None)

    def run(
        self, client: Client, requests: list[Request], out: list[bytes], room: int, start: int = 0,
        until: float = math.inf,
    ) -> int:  # fmt: skip
        """Run requests from `start` on in order, their replies appended to `out`; where it stopped.

        The last is one that blocks or closes, the one whose reply makes them more than `room` bytes, or the one that
        ends after `until` (time.perf_counter). While all commands are fast, the clock is read after every 16th only.
        An XaddBatch that must not be taken as one is replaced in `requests` by its commands.
        """
        client.last_seen = self.now
        self._may_be_long = False
        at = start
        while at < len(requests):
            request = requests[at]
            if isinstance(request, list):
                reply = self.execute(client, request)
                self.commands_processed += 1
            else:
                reply = self._run_batch(client, request)
                if reply is None:
                    requests[at : at + 1] = request.commands()
                    continue
            at += 1
            if client.reply_mode != REPLY_ON:
                self._keep_silent(client)
            elif isinstance(reply, bytes):
                out.append(reply)
                room -= len(reply)
            elif reply is not None:
                before = len(out)
                reply.write(out, client.resp)
                room -= sum(map(len, out[before:]))
            if client.db.ready:
                self.serve_ready()
                self._may_be_long = True
            if client.waiter is not None or client.closing or room < 0:
                break
            if (self._may_be_long or at % _FAST_RUN == 0) and time.perf_counter() > until:
                break
        self._time(None)
        return at

    def _keep_silent(self, client: Client) -> None:
        """A command is done whose reply CLIENT REPLY keeps back: all of them (OFF), or the one behind SKIP."""
        if client.reply_mode == REPLY_SKIP_NEXT:
            client.reply_mode = REPLY_SKIPPING
        elif client.reply_mode == REPLY_SKIPPING and client.waiter is None:
            client.reply_mode = REPLY_ON

    def _run_batch(self, client: Client, batch: XaddBatch) -> bytes | None:
        """The replies of a batch of XADDs; None, and nothing is done, where they must be run one by one."""
        if client.queue is not None and client.reply_mode != REPLY_ON:
            return None
        if self.access.needed:
            try:
                self.access.check(client, self._xadd, [batch.raw])
            except CommandError:
                return None
        if client.queue is None:
            replies = self.execute_batch(client, batch)
        else:
            client.queue.append(batch)
            replies = QUEUED * len(batch.sections)
        if replies is not None:
            self.commands_processed += len(batch.sections)
        return replies

    def execute_batch(self, client: Client, batch: XaddBatch) -> bytes | None:
        """The same without asking whether it may be run, or is only to be queued."""
        spec = self._xadd
        if spec is not self._timed:
            self._time(spec)
        self._may_be_long = True
        replies = self._add_batch(self, client, batch)
        if replies is not None:
            spec.calls += len(batch.sections)
            client.last_command = spec.name.encode()
        return replies

    def _time(self, spec: Command | None) -> None:
        """From now on time goes to this command: the clock is read where the command changes, not for each."""
        moment = time.perf_counter_ns()
        if self._timed is not None:
            self._timed.nanoseconds += moment - self._timed_since
        self._timed, self._timed_since = spec, moment
        if spec is not None and not spec.fast:
            self._may_be_long = True

    def serve_ready(self) -> None:
        """Serve the clients that wait for keys which have just changed."""
        for db in self.databases:
            if db.ready:
                self.waiters.serve(db)

    def block(self, waiter: Waiter) -> None:
        """The command that its client has just sent waits. It counts as one that was called once it has its reply."""
        spec = COMMANDS[waiter.client.last_command.lower()]
        spec.calls -= 1
        self.commands_processed -= 1
        self.waiters.add(waiter)

    def _deliver(self, client: Client, reply: Reply) -> None:
        """A blocked client gets its reply now."""
        spec = COMMANDS[client.last_command.lower()]
        spec.calls += 1
        self.commands_processed += 1
        if reply.__class__ is bytes and reply[:1] == b"-":
            spec.failed += 1
            self.count_error(reply)
        if client.reply_mode == REPLY_SKIPPING:
            client.reply_mode = REPLY_ON
            reply = b""
        elif client.reply_mode == REPLY_OFF:
            reply = b""
        self.send(client, reply)

    def execute(self, client: Client, args: list[bytes]) -> Reply | None:
        """Run one command. The reply; None when it has blocked, or answers nothing by its nature."""
        spec: Command | None = None
        running = False
        try:
            known = self._known.get(args[0])
            if known is not None and (len(args) == known.arity or len(args) >= -known.arity > 0):
                spec = known
            else:
                spec = self.look_up(args)
            client.last_command = args[0]
            if self.access.needed and not self.in_transaction:
                self.access.check(client, spec, args)
            if client.queue is not None and "intransaction" not in spec.flags:
                if "nomulti" in spec.flags:
                    raise CommandError("ERR Command not allowed inside a transaction")
                client.queue.append(args)
                return QUEUED
            if spec is not self._timed:
                self._time(spec)
            spec.calls += 1
            running = True
            assert spec.handler is not None
            if self.journal is None:
                return spec.handler(self, client, args)
            if self.journal.refusal and "write" in spec.flags:
                raise CommandError(self.journal.refusal)
            if not spec.verbatim:
                return spec.handler(self, client, args)
            before = sum([db.changes for db in self.databases])
            reply = spec.handler(self, client, args)
            if sum([db.changes for db in self.databases]) != before:
                self.journal.record(client.db, spec.name, args)
            return reply
        except CommandError as failure:
            return self._refuse(client, args, failure, spec, running)
        except HttpRequestError:
            self.access.warn_of(client, HTTP_REQUEST)
            client.closing = True
            self.disconnect(client)
            return None
        except Exception:
            log.exception("internal error in %r", args[0])
            return error(b"ERR internal error, see the engine's log")

    def _refuse(
        self, client: Client, args: list[bytes], failure: CommandError, spec: Command | None, running: bool
    ) -> bytes:
        """The error as a reply, counted for the command (running: it had begun); a queued transaction is broken."""
        reply = error(failure.text)
        if self.access.keeps_out(client):
            self.access.count_refusal(client)
        if client.queue is not None and (spec is None or "intransaction" not in spec.flags):
            client.broken = True
        named = spec or named_by(args)
        if named is not None:
            named.failed += running
            named.rejected += not running
        self.count_error(reply)
        return reply

    def look_up(self, args: list[bytes]) -> Command:
        """The command that these arguments name. Raises CommandError, HttpRequestError."""
        if args[0].lower() in HTTP_WORDS:
            raise HttpRequestError
        spec = find(args)
        if spec.name.encode() == args[0].lower():
            self._known[args[0]] = spec
        return spec

    def commit(self) -> None:
        """What has changed so far may be told to clients after this. Raises PersistenceError."""
        if self.journal is not None and self.journal.parts:
            self.persistence.writer.commit()

    def _expired(self, db: Database, key: bytes) -> None:
        self.keys_expired += 1
        if self.journal is not None:
            self.journal.write(db, b"DEL", key)

    def count_error(self, line: bytes) -> None:
        """For INFO's errorstats."""
        self.error_replies += 1
        prefix = line[1:].split(None, 1)[0].decode("utf-8", "replace")
        self.errors[prefix] = self.errors.get(prefix, 0) + 1
