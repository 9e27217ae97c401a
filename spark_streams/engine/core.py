"""The engine without sockets: databases, clients, configuration, and running commands one after the other.

The server reads bytes, calls `run` with the commands of one socket read, and writes the replies that `run` returns. The
`clock` is read once per socket read, so that all commands of a pipelined chunk share a millisecond.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from typing import TypeAlias

from spark_streams.engine.access_guard import HTTP_REQUEST, HTTP_WORDS, AccessGuard, HttpRequestError
from spark_streams.engine.client import REPLY_OFF, REPLY_ON, REPLY_SKIP_NEXT, REPLY_SKIPPING, Client, Waiter, Waiters
from spark_streams.engine.command_table import COMMANDS, Command, find, find_by_name
from spark_streams.engine.faults import Faults
from spark_streams.engine.journal import Journal
from spark_streams.engine.persistence.append_only import Persistence
from spark_streams.engine.resp.request_parser import Request
from spark_streams.engine.resp.wire_replies import QUEUED, CommandError, Reply, error
from spark_streams.engine.resp.xadd_batch import BackgroundShapeMaker, Shapes, XaddBatch
from spark_streams.engine.settings import Config
from spark_streams.engine.store.keyspace import Database, MemoryGauge, Ready
from spark_streams.engine.store.node_limits import NodeLimits

REDIS_VERSION = "8.10.0"  # the newest Redis version whose stream commands are all implemented
DATABASES = 16
_FAST_RUN = 16  # fast commands between two readings of the clock; a reading takes a tenth of such a command

# Run a batch of XADDs as one. None: nothing was done, and the commands must run one by one.
AddBatch: TypeAlias = "Callable[[Engine, Client, XaddBatch], bytes | None]"

log = logging.getLogger("rstream.engine")


def unix_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


class MovedClock:
    """A clock that a test has moved. machine: the clock that it is set by."""

    def __init__(self, machine: Callable[[], int]) -> None:
        self.machine = machine
        self._ahead = 0
        self._stands_at: int | None = None

    def __call__(self) -> int:
        return self.machine() + self._ahead if self._stands_at is None else self._stands_at

    def advance(self, milliseconds: int) -> None:
        """Move the time on. A clock that stands goes on standing."""
        if self._stands_at is None:
            self._ahead += milliseconds
        else:
            self._stands_at += milliseconds

    def freeze(self, moment: int | None) -> None:
        """Stop the clock: at this moment, or at the present one."""
        self._stands_at = self() if moment is None else moment

    def go_on(self) -> None:
        """Let a clock that stands run again, from where it stands."""
        self._ahead, self._stands_at = self() - self.machine(), None


class Engine:
    """All state of one engine process. Created by commands.py."""

    def __init__(self, add_batch: AddBatch, clock: Callable[[], int] = unix_ms) -> None:
        self.clock = clock
        self.now = clock()
        self.started = self.now
        self.node_limits = NodeLimits()
        self.loading = False  # while the append-only file is loaded: no key expires
        self.journal: Journal | None = None  # set if changes are recorded
        self.wake: Callable[[], None] = lambda: None  # end the server's waiting; safe in any thread
        self.serve_meanwhile: Callable[[], None] = lambda: None  # serve clients during a long job; set by the server
        self.config = Config(self.node_limits)
        self.persistence = Persistence(self)
        self.ready: Ready = {}
        self.databases = [
            Database(number, lambda: 0 if self.loading else self.now, self.ready) for number in range(DATABASES)
        ]
        for db in self.databases:
            db.expired = self._expired
        self.memory = MemoryGauge(self.databases)
        self.access = AccessGuard(self.config, self.memory)
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
        self.faults: Faults | None = None  # that a test has set
        self.scripts: set[bytes] = set()  # SHA-1 of those that clients have loaded
        self.active_expire = True  # DEBUG SET-ACTIVE-EXPIRE
        self.errors: dict[str, int] = {}
        self.error_replies = 0
        self._add_batch = add_batch
        self._xadd = COMMANDS[b"xadd"]
        self.shapes = Shapes(make=BackgroundShapeMaker())
        self._command_cache: dict[bytes, Command] = {}
        self._timed: Command | None = None  # command whose time is being measured
        self._timed_since = 0
        self._may_be_long = False  # this call of `run` has run a command that is not fast

    def set_loading(self, loading: bool) -> None:
        """Set whether the append-only file is being loaded."""
        self.loading = loading
        self.access.set_loading(loading)

    def tick(self) -> int:
        """Read the clock."""
        self.now = self.clock()
        return self.now

    def connect(self, address: str, laddr: str) -> Client:
        """Return the state of a new client."""
        client = Client(self.next_client, self.databases[0], address, laddr, self.now)
        client.authenticated = not self.access.has_password
        self.next_client += 1
        self.clients[client.id] = client
        self.connections_received += 1
        return client

    def forget(self, client: Client) -> None:
        """Remove a client that has disconnected."""
        if client.waiter is not None:
            self.waiters.remove(client.waiter)
        client.unwatch()
        self.clients.pop(client.id, None)

    def run(
        self, client: Client, requests: list[Request], out: list[bytes], reply_budget: int, start: int = 0,
        until: float = math.inf,
    ) -> int:  # fmt: skip
        """Run requests in order from index `start` and append their replies to `out`. Return the index after the last.

        It stops after a request that blocks or closes the client, after more than `reply_budget` bytes of replies, or
        after `until` (time.perf_counter). If all commands are fast, the clock is read after every 16th only.
        An XaddBatch that cannot run as one is replaced in `requests` by its commands.
        """
        client.last_seen = self.now
        self._may_be_long = False
        index = start
        while index < len(requests):
            request = requests[index]
            if isinstance(request, list):
                reply = self.execute(client, request)
                self.commands_processed += 1
            else:
                reply = self._run_batch(client, request)
                if reply is None:
                    requests[index : index + 1] = request.commands()
                    continue
            index += 1
            if client.reply_mode != REPLY_ON:
                self._keep_silent(client)
            elif isinstance(reply, bytes):
                out.append(reply)
                reply_budget -= len(reply)
            elif reply is not None:
                before = len(out)
                reply.write(out, client.resp)
                reply_budget -= sum(map(len, out[before:]))
            if self.ready:
                self.serve_ready()
                self._may_be_long = True
            if client.waiter is not None or client.closing or reply_budget < 0:
                break
            if (self._may_be_long or index % _FAST_RUN == 0) and time.perf_counter() > until:
                break
        self._time(None)
        return index

    def _keep_silent(self, client: Client) -> None:
        """Update the reply mode (CLIENT REPLY OFF or SKIP) after a command whose reply is not sent."""
        if client.reply_mode == REPLY_SKIP_NEXT:
            client.reply_mode = REPLY_SKIPPING
        elif client.reply_mode == REPLY_SKIPPING and client.waiter is None:
            client.reply_mode = REPLY_ON

    def _run_batch(self, client: Client, batch: XaddBatch) -> bytes | None:
        """Return the replies of a batch of XADDs; None if nothing was done because they must run one by one."""
        if client.queue is not None and client.reply_mode != REPLY_ON:
            return None
        if self.access.needed:
            try:
                self.access.check_allowed(client, self._xadd, [batch.raw])
            except CommandError:
                return None
        if client.queue is None:
            replies = self.execute_batch(client, batch)
        else:
            self.memory.grow(client.enqueue(batch))
            replies = QUEUED * len(batch.sections)
        if replies is not None:
            self.commands_processed += len(batch.sections)
        return replies

    def run_joint(self, clients: list[Client], batch: XaddBatch) -> bytes | None:
        """Run a batch to which each of these clients has sent one command; the reply as in `_run_batch`."""
        first = clients[0]
        if any(client.db is not first.db for client in clients):
            return None
        replies = self._run_batch(first, batch)
        self._time(None)
        if replies is not None:
            for client in clients:
                client.last_seen, client.last_command = self.now, first.last_command
        return replies

    def execute_batch(self, client: Client, batch: XaddBatch) -> bytes | None:
        """Run a batch of XADDs without access checks and without queueing; the reply as in `_run_batch`."""
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
        """Count time for this command from now on. The clock is read when the command changes, not for each command."""
        moment = time.perf_counter_ns()
        if self._timed is not None:
            self._timed.nanoseconds += moment - self._timed_since
        self._timed, self._timed_since = spec, moment
        if spec is not None and not spec.fast:
            self._may_be_long = True

    def serve_ready(self) -> None:
        """Serve clients that wait for keys that have just changed."""
        self.waiters.serve(self.ready)

    def block(self, waiter: Waiter) -> None:
        """Block the client of this waiter. Its command counts as called when it has its reply."""
        spec = COMMANDS[waiter.client.last_command.lower()]
        spec.calls -= 1
        self.commands_processed -= 1
        self.waiters.add(waiter)

    def _deliver(self, client: Client, reply: Reply) -> None:
        """Send the reply of a client that was blocked."""
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

    def execute_plain(self, client: Client, args: list[bytes]) -> Reply | None:
        """Run one command, without the faults that a test has set."""
        return type(self).execute(self, client, args)

    def execute(self, client: Client, args: list[bytes]) -> Reply | None:
        """Run one command. Return its reply; None if it has blocked its client or has no reply."""
        spec: Command | None = None
        running = False
        try:
            cached_command = self._command_cache.get(args[0])
            if cached_command is not None and (
                len(args) == cached_command.arity or len(args) >= -cached_command.arity > 0
            ):
                spec = cached_command
            else:
                spec = self.look_up(args)
            client.last_command = args[0]
            if self.access.needed and not self.in_transaction:
                self.access.check_allowed(client, spec, args)
            if client.queue is not None and "intransaction" not in spec.flags:
                if "nomulti" in spec.flags:
                    raise CommandError("ERR Command not allowed inside a transaction")
                self.memory.grow(client.enqueue(args))
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
            return self.refuse(client, args, failure, spec, running)
        except HttpRequestError:
            self.access.warn_closing(client, HTTP_REQUEST)
            client.closing = True
            self.disconnect(client)
            return None
        except Exception:
            log.exception("internal error in %r", args[0])
            return error(b"ERR internal error, see the engine's log")

    def refuse(
        self, client: Client, args: list[bytes], failure: CommandError, spec: Command | None, running: bool
    ) -> bytes:
        """Return the error reply and count it (running: the handler had started). Break an open transaction."""
        reply = error(failure.text)
        if self.access.must_authenticate(client):
            self.access.count_refusal(client)
        if client.queue is not None and (spec is None or "intransaction" not in spec.flags):
            client.broken = True
        named = spec or find_by_name(args)
        if named is not None:
            named.failed += running
            named.rejected += not running
        self.count_error(reply)
        return reply

    def look_up(self, args: list[bytes]) -> Command:
        """Return the command that these arguments name. Raises CommandError, HttpRequestError."""
        if args[0].lower() in HTTP_WORDS:
            raise HttpRequestError
        spec = find(args)
        if args[0] in (spec.name.encode(), spec.name.upper().encode()):
            self._command_cache[args[0]] = spec
        return spec

    def commit(self) -> None:
        """Write recorded changes, before replies about them are sent. Raises PersistenceError."""
        if self.journal is not None and self.journal.parts:
            self.persistence.writer.commit()

    def _expired(self, db: Database, key: bytes) -> None:
        self.keys_expired += 1
        if self.journal is not None:
            self.journal.write(db, b"DEL", key)

    def count_error(self, line: bytes) -> None:
        """Count an error reply for INFO's errorstats."""
        self.error_replies += 1
        prefix = line[1:].split(None, 1)[0].decode("utf-8", "replace")
        self.errors[prefix] = self.errors.get(prefix, 0) + 1
