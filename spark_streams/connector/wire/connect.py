"""Connects to the servers of an address, whatever its kind is: one, the master of several, a cluster."""

from __future__ import annotations

import contextlib
import select
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import hiredis

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import RowTooLargeError, RStreamError, ServerReplyError, ServerUnreachableError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, Reply, ReplyError, Server, pack
from spark_streams.connector.wire.named_errors import ASK, Memory
from spark_streams.connector.wire.replies import info, is_forbidden, portions_of

# -- connections to a server that is no longer the master, behind an address that leads to the new one -----------------

# A master that becomes a replica keeps its connections, and answers reads from its data. If its link to the new master
# is dead, that data is old for ever. A connection over which something is written learns it (READONLY), and so does a
# blocking read (UNBLOCKED). What one of them learns ends the others of this process: they connect again, and the
# address leads to the new master. A connection that only reads asks for the role now and then (`RoleCheck`).
#
# Sentinels and clusters tell of a new master themselves (wire.topology).

_LEARNT = ("READONLY", "UNBLOCKED")  # codes of replies of a server that has become a replica
_QUESTIONS = (("ROLE",), ("INFO", "replication"))  # the second if the server or the user's rights refuse the first

_lock = threading.Lock()
_open: dict[str, weakref.WeakSet[Connection]] = {}  # by URL


def register(connection: Connection) -> None:
    with _lock:
        _open.setdefault(connection.address.url, weakref.WeakSet()).add(connection)


def leave_if_replica(address: Address, error: Exception) -> None:
    """End all connections to the address if this error shows that their server has become a replica."""
    if isinstance(error, ReplyError | ServerReplyError) and error.code in _LEARNT:
        leave(address)


def leave(address: Address, but: Server | None = None) -> None:
    """End all connections to the address, also those of other threads. but: stays."""
    with _lock:
        connections = [connection for connection in _open.get(address.url, ()) if connection is not but]
    for connection in connections:
        connection.abandon()


class RoleCheck:
    """Asks at intervals whether a server is still the master. now: a monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float], interval: float) -> None:
        self._now, self._interval = now, interval
        self._asked = now()
        self._questions = list(_QUESTIONS)  # those that were not refused

    def is_due(self) -> bool:
        """Whether the interval is over. Never, if the user may not ask."""
        return bool(self._questions) and self._now() - self._asked >= self._interval

    def require_master(self, server: Server) -> None:
        """Raise ServerReplyError (READONLY) if the server is a replica. In a cluster nothing is asked."""
        while self._questions and not server.address.is_cluster:
            [reply] = server.pipeline([self._questions[0]])
            if not isinstance(reply, ReplyError):
                _require_master(server, reply)
                break
            self._questions.pop(0)
        self._asked = self._now()


def _require_master(server: Server, reply: Reply) -> None:
    facts = info(reply) if isinstance(reply, bytes) else {"role": reply[0].decode()}
    if facts.get("role") in ("slave", "replica"):
        raise ServerReplyError(
            f"the server at {server.address} has become a replica, and its data may be old: the address must lead to "
            "the master",
            "READONLY",
        )


# -- connecting --------------------------------------------------------------------------------------------------------


def connect(address: Address, repeats: bool = False) -> Server:
    """Return a new connection, or the connections to a cluster; usable as a context manager.

    repeats: the caller repeats a step if a slot of a cluster has moved, and gets the error; else redirections are
    followed.

    Raises ServerUnreachableError if no server answers, LoginError if the server refuses the login, NotPermittedError,
    ServerReplyError while a master is being replaced, UnsupportedError if an address of a cluster leads to none.
    """
    if address.is_cluster:
        from spark_streams.connector.wire.cluster import Cluster

        return Cluster(address, follows=not repeats)
    if address.asks_sentinels:
        from spark_streams.connector.wire.sentinel import connect_to_master, watch

        server, named = connect_to_master(address)
        watch(address, server, named)
        return server
    connection = Connection(address)
    register(connection)
    return connection


def invalidate_topology(address: Address) -> None:
    """Refresh the topology before its next use: a connection to this address was lost or redirected."""
    if address.is_cluster:
        from spark_streams.connector.wire.topology import forget

        forget(address)


# -- a connection for repeated reads: it connects when it is used, and again after it broke ----------------------------

_AT_ONCE = 1.0  # seconds: a failure after a longer time means a silent server, not a connection that broke before


class KeptConnection:
    """A connection that is opened again after it broke. Not safe for two threads at once.

    trouble: receives the error when the server stops answering, and again if the kind of error changes."""

    def __init__(self, address: Address, trouble: Callable[[RStreamError], None]) -> None:
        self.address = address
        self._trouble = trouble
        self._server: Server | None = None
        self.failure: RStreamError | None = None  # of the last request; None: the server answered

    @property
    def answers(self) -> bool:
        """Whether the server answered the last request."""
        return self.failure is None

    def use(self, act: Callable[[Server], None]) -> bool:
        """Call `act` with the connection, and return whether the server answered. If the connection broke since the
        last call, connect again once. `act` must be safe to repeat."""
        for last in (False, True):
            old, began = self._server is not None, time.monotonic()
            try:
                if self._server is None:
                    self._server = connect(self.address)
                self._server.renew_login()
                act(self._server)
            except RStreamError as error:
                self.close()
                is_quick = time.monotonic() - began < _AT_ONCE
                if isinstance(error, ServerUnreachableError) and old and is_quick and not last:
                    continue
                before, self.failure = self.failure, error
                if before is None or before.condition != error.condition:
                    self._trouble(error)
                return False
            self.failure = None
            return True
        return False

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


# -- XREAD BLOCK over many streams, with one connection per node -------------------------------------------------------

# The server keeps each request until one of its streams gets an entry, or until its time is over. Between two calls the
# request stays with the server, so waiting costs no commands. The entry itself is of no interest: the caller asks for
# the state of all streams after it.


_MOST_WAITS = 64  # requests, each by a connection of its own: a cluster takes none of streams in two slots


class BlockedRead:
    """One caller's blocking reads. Not for two threads at once.

    refused: why nothing is waited for: the server's error if this user may not use XREAD, or too many slots.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._servers: list[Server] = []  # several if one request to a node cannot name all its streams
        self._waiting: dict[Connection, frozenset[str]] = {}
        self.refused: str | None = None

    def begin(self, last: Mapping[str, StreamId], seconds: float) -> None:
        """Wait for an entry above `last`, the last ID of each stream, for at most `seconds`.

        Streams whose request is still open are not asked for again: none of them has had an entry since.
        Raises ServerError.
        """
        server, requests = self._server(0), Counter[Connection]()
        requested = portions_of(server, list(last))
        if len(requested) > _MOST_WAITS:
            self.refused = (
                f"its streams are in {len(requested)} slots of the cluster, and it can wait for {_MOST_WAITS}. A "
                "common {hash tag} in their names makes idle queries free"
            )
            return None
        for streams in requested:
            node = server.connection_for(streams[0])
            connection, names = self._server(requests[node]).connection_for(streams[0]), frozenset(streams)
            requests[node] += 1
            if self._waiting.get(connection) == names:
                continue
            if connection in self._waiting:
                self.close()
                return self.begin(last, seconds)
            ids = [str(last[stream]) for stream in streams]
            wait = max(1, round(seconds * 1000))
            connection.send(pack("XREAD", "COUNT", 1, "BLOCK", wait, "STREAMS", *streams, *ids))
            self._waiting[connection] = names
        return None

    def is_over(self, seconds: float) -> bool:
        """Wait up to `seconds`. Whether a stream has an entry, the time is over, or a connection was lost."""
        if any(connection.has_input for connection in self._waiting):
            ready = [connection for connection in self._waiting if connection.has_input]
        else:
            poll = select.poll()
            by_file = {connection.fileno(): connection for connection in self._waiting}
            for file in by_file:
                poll.register(file, select.POLLIN)
            ready = [by_file[file] for file, _ in poll.poll(seconds * 1000)]
        for connection in ready:
            self._take_reply(connection)
        return bool(ready)

    def close(self) -> None:
        """Close all connections; the server forgets the requests."""
        self._waiting = {}
        servers, self._servers = self._servers, []
        for server in servers:
            with contextlib.suppress(RStreamError):
                server.close()

    def _server(self, number: int) -> Server:
        if number == len(self._servers):
            self._servers.append(connect(self._address, repeats=True))
        return self._servers[number]

    def _take_reply(self, connection: Connection) -> None:
        """Read a reply that is small. A connection with a large one is closed, so that no large entry is read here."""
        reader = hiredis.Reader(replyError=ReplyError)
        try:
            reader.feed(connection.receive_some())  # type: ignore[arg-type]  # it takes any buffer
        except RStreamError:
            self.close()
            return
        reply = reader.gets()
        if isinstance(reply, ReplyError):
            if reply.code == "NOPERM":
                self.refused = f"its user has no right to XREAD ({reply}). Grant +xread to make idle queries free"
            invalidate_topology(self._address)
            leave_if_replica(self._address, reply)
        if reply is False or isinstance(reply, ReplyError):
            self.close()
        else:
            self._waiting.pop(connection, None)


# -- what a server is configured to: limits for one argument and one request -------------------------------------------

# proto-max-bulk-len           bytes of one argument (default 512 MB)
#     client-query-buffer-limit    bytes of a request, or of a transaction, that is being received (default 1 GB)
#     client-output-buffer-limit   bytes of replies that a client has not received yet (default: none for clients)
#
# The server closes the connection of a client that exceeds them (FACTS R22), and retries would never succeed.

SMALL = 1 << 20  # bytes that every server accepts: neither limit can be lower
NAMES = ("proto-max-bulk-len", "client-query-buffer-limit")
OUTPUT = "client-output-buffer-limit"


def fetch_limits(server: Server) -> tuple[int, int] | None:
    """Return both limits, in this order; None if the user may not read them, or the server has no CONFIG. Raises
    ServerError."""
    replies = server.execute_all([("CONFIG", "GET", name) for name in NAMES], is_forbidden)
    if any(is_forbidden(reply) or len(reply) != 2 for reply in replies):
        return None
    return int(replies[0][1]), int(replies[1][1])


def find_exceeded_limit(address: Address, argument: int, request: int) -> str:
    """Return the limit that an argument and a request of these sizes exceed, for a message; empty if none, or unknown.

    Call it after a connection was lost: it opens a connection of its own.
    """
    if max(argument, request) <= SMALL:
        return ""
    try:
        with connect(address) as server:
            limits = fetch_limits(server)
    except RStreamError:
        return ""  # the server is unavailable; its next user reports that
    if limits is None:
        return ""
    sizes = zip(NAMES, (argument, request), limits, strict=True)
    return next((f"takes {limit} ({name})" for name, size, limit in sizes if size > limit), "")


def require_accepted(address: Address, stream: str, entries: Iterable[Sequence[str]]) -> None:
    """Raise RowTooLargeError if an entry is larger than the server accepts. entries: of fields. Call it after a
    connection was lost."""
    sizes = [[len(word.encode()) for word in fields] for fields in entries]
    total, largest = max(((sum(of), max(of, default=0)) for of in sizes), default=(0, 0))
    if why := find_exceeded_limit(address, largest, total):
        raise RowTooLargeError(
            f"an entry of {total:,} bytes for stream {stream!r}, its largest value {largest:,}: the server at "
            f"{address} {why}. Raise this limit"
        )


def find_reply_limit(address: Address) -> int:
    """Return the bytes of unread replies beyond which the server closes a connection; 0 if there is no limit, or
    unknown. It opens a connection of its own."""
    try:
        with connect(address) as server:
            told = [node.execute("CONFIG", "GET", OUTPUT)[1].decode() for node in server.nodes()]
            return min(filter(None, map(reply_limit_in, told)), default=0)
    except (RStreamError, IndexError):  # unavailable, or the user may not read it
        return 0


def reply_limit_in(setting: str) -> int:
    """Return the smaller limit of `normal 0 0 0 slave 268435456 67108864 60 …`: hard, soft bytes, seconds; 0: none."""
    words = setting.split()
    limits = words[words.index("normal") + 1 :][:2] if "normal" in words else []
    return min((int(limit) for limit in limits if limit.isdecimal() and int(limit)), default=0)


# -- whether a server evicts keys when its memory is full (maxmemory, maxmemory-policy) --------------------------------


def evicting_policy(server: Server) -> str | None:
    """Return the eviction policy; None if no key is evicted (`noeviction`, or no maxmemory), or if INFO is not
    permitted.

    `allkeys-…` evicts any key, `volatile-…` keys with an expiry. Raises ServerError.
    """
    return find_worst_policy(node.execute_all([ASK], is_forbidden)[0] for node in server.nodes())


def find_worst_policy(replies: Iterable[Reply]) -> str | None:
    """Return the policy that evicts most, from the replies of all servers to ASK."""
    memories = [Memory.read(reply) for reply in replies]
    policies = [memory.policy for memory in memories if memory.limit and memory.policy != "noeviction"]
    return next((policy for policy in policies if drops_any_key(policy)), next(iter(policies), None))


def drops_any_key(policy: str | None) -> bool:
    """Whether keys without an expiry are evicted, too."""
    return policy is not None and policy.startswith("allkeys")
