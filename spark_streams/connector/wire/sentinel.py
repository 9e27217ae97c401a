"""Finds the master by asking its sentinels, for each new connection.

All reachable sentinels are asked, and the newest configuration counts (its epoch). After a failover some of them still
name the old master for a second or two, which accepts writes until it becomes a replica (docs/internals/facts.md, R30).
While a sentinel promotes a replica, no connection is made: what the old master accepts then is lost.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import hiredis
import redis

from spark_streams.connector.errors import LoginError, RStreamError, ServerReplyError, ServerUnreachableError
from spark_streams.connector.wire import server_url
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, Reply, ReplyError, pack
from spark_streams.connector.wire.server_url import Node
from spark_streams.connector.wire.sockets import open_connection, socket_of

ANSWER_WITHIN = 1.0  # seconds to connect to a sentinel, and for each of its replies
_NOT_ASKED_FOR = 10.0  # seconds for which a sentinel that did not answer is not asked while another one answers
# States of a failover in the sentinel that leads it.
_PROMOTING = ("select_slave", "send_slaveof_noone", "wait_promotion")
_PROMOTED = ("reconf_slaves", "update_config")


@dataclass(frozen=True)
class Named:
    """What one sentinel reports of the master."""

    node: Node  # its address, in the configuration `epoch`
    epoch: int
    down: bool  # it counts as down
    promoting: bool  # a replica is being promoted
    promoted: bool  # a replica is the master, and the configuration is not everywhere yet

    def replaces(self, earlier: Named) -> bool:
        """Whether connections to the master of the earlier report must be closed."""
        other = self.promoting or self.node != earlier.node
        return self.epoch > earlier.epoch or (self.epoch == earlier.epoch and other)


class UnknownMasterError(Exception):
    """The sentinel has no master of this name. master_names: the names that it has."""

    def __init__(self, master_names: list[str]) -> None:
        super().__init__(f"it knows {', '.join(map(repr, master_names)) or 'none'}")
        self.master_names = master_names


_silent_since: dict[Node, float] = {}  # when sentinels did not answer that have not answered since


def connect_to_master(address: Address) -> tuple[Connection, Named]:
    """Return a connection to the server that the sentinels name, which confirms that it is a master.

    Raises ServerUnreachableError if no sentinel or the master does not answer, ServerReplyError (READONLY) while it is
    being replaced, which is temporary, LoginError, NotPermittedError.
    """
    named = master(address)
    server = Connection(address, address.node(*named.node))
    try:
        role = server.execute("ROLE")[0]
    except RStreamError:
        server.close()
        raise
    if role != b"master":
        server.close()
        where = f"{named.node[0]}:{named.node[1]}"
        raise ServerReplyError(
            f"the sentinels at {address} name {where} as the master, and it is a {role.decode()}: "
            "a failover is in progress",
            "READONLY",
        )
    return server, named


def master(address: Address) -> Named:
    """Return the newest configuration. Raises as `connect_to_master`."""
    answers: list[Named] = []
    failed: dict[Node, Exception] = {}
    for node in sorted(address.nodes, key=lambda node: _silent_since.get(node, 0.0)):  # first those that may answer
        if answers and time.monotonic() - _silent_since.get(node, -_NOT_ASKED_FOR) < _NOT_ASKED_FOR:
            continue
        try:
            answers.append(ask(address, node))
        except (redis.RedisError, OSError, ReplyError, UnknownMasterError) as error:
            failed[node] = error
        if isinstance(failed.get(node), redis.RedisError | OSError):
            _silent_since[node] = time.monotonic()
        else:
            _silent_since.pop(node, None)
    if not answers:
        raise _no_master_error(address, failed)
    newest = max(answers, key=lambda named: (named.epoch, named.promoted, not named.down))
    if any(named.promoting and named.epoch == newest.epoch for named in answers):
        raise ServerReplyError(f"the sentinels at {address} are making a replica the master", "READONLY")
    if all(named.down for named in answers if named.epoch == newest.epoch):
        where = f"{newest.node[0]}:{newest.node[1]}"
        raise ServerUnreachableError(f"the sentinels at {address} report that the master, {where}, is down")
    return newest


def ask(address: Address, node: Node) -> Named:
    """Return the report of one sentinel. Raises redis-py's errors, OSError, ReplyError, UnknownMasterError."""
    name = server_url.master_name(address.url)
    where, masters = _exchange(address, node, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name), ("SENTINEL", "MASTERS"))
    for reply in (where, masters):
        if isinstance(reply, ReplyError):
            raise reply
    masters_by_name = {
        facts["name"]: facts for facts in (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in masters)
    }
    if where is None or name not in masters_by_name:
        raise UnknownMasterError(sorted(masters_by_name))
    master_facts, flags = masters_by_name[name], masters_by_name[name]["flags"].split(",")
    state = master_facts.get("failover-state", "none")
    down = "s_down" in flags or "o_down" in flags
    return Named(
        (where[0], int(where[1])), int(master_facts["config-epoch"]), down, state in _PROMOTING, state in _PROMOTED
    )


def fail_over(address: Address) -> None:
    """Ask a sentinel to replace the running master. Raises ServerReplyError if no sentinel does so."""
    name = server_url.master_name(address.url)
    refusals = []
    for node in address.nodes:
        try:
            [reply] = _exchange(address, node, ("SENTINEL", "FAILOVER", name))
        except (redis.RedisError, OSError) as error:
            reply = error
        if not isinstance(reply, Exception):
            return
        refusals.append(f"{node[0]}:{node[1]}: {reply}")
    raise ServerReplyError(f"no sentinel of {address} starts a failover ({'; '.join(refusals)})", "FAILOVER")


def _exchange(address: Address, node: Node, *questions: tuple[str, ...]) -> list[Reply]:
    """Return the replies of one sentinel. Raises redis-py's errors, OSError."""
    connection = open_connection(server_url.of_sentinel(address.url, node), ANSWER_WITHIN, ANSWER_WITHIN)
    try:
        connected = socket_of(connection)
        connected.sendall(b"".join(pack(*question) for question in questions))
        reader = hiredis.Reader(replyError=ReplyError, encoding="utf-8", errors="replace")
        return [reply for _, reply in zip(questions, _replies(connected, reader), strict=False)]
    finally:
        connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped


def _replies(connected: socket.socket, reader: hiredis.Reader) -> Iterator[Reply]:
    """Yield replies as they arrive. Raises OSError."""
    while True:
        while (reply := reader.gets()) is not False:
            yield reply
        data = connected.recv(65536)
        if not data:
            raise ConnectionError("it closed the connection")
        reader.feed(data)


def _no_master_error(address: Address, failed: dict[Node, Exception]) -> RStreamError:
    """Return the error if no sentinel has named a master."""
    name = server_url.master_name(address.url)
    failures = "; ".join(f"{host}:{port}: {str(error).rstrip('.')}" for (host, port), error in failed.items())
    unknown = [error for error in failed.values() if isinstance(error, UnknownMasterError)]
    if unknown:
        known_names = sorted({known_name for error in unknown for known_name in error.master_names})
        names = ", ".join(map(repr, known_names)) or "none"
        away = len(unknown) < len(failed)  # others may know it
        return ServerUnreachableError(
            f"no sentinel of {address} knows a master {name!r}; they know {names}{f' ({failures})' if away else ''}: "
            "write redis+sentinel://…/name-of-the-master/db",
            passes=away,
        )
    if any(_is_login(error) for error in failed.values()):
        return LoginError(
            f"the sentinels of {address} refuse the login ({failures}): give their own login after the ?, as "
            "sentinel_username=…&sentinel_password=…; it needs the right +sentinel",
            "NOAUTH",
        )
    return ServerUnreachableError(
        f"no sentinel answers at {address} ({failures}){address.machine_hint()}; start them, or correct the url"
    )


def _is_login(error: Exception) -> bool:
    refused = redis.AuthenticationError | redis.exceptions.NoPermissionError
    return isinstance(error, refused) or (isinstance(error, ReplyError) and error.code in ("NOAUTH", "NOPERM"))


# -- a thread per sentinel listens to its events, and closes connections to a master that is being replaced ------------

# Without it, a connection to the old master lives for ten seconds after `SENTINEL FAILOVER`, until the server becomes a
# replica, and all writes that it has acknowledged since are lost (docs/internals/facts.md, R30). The threads end with
# the last connection that they watch, and are idle if there is no failover.

# A replica is being selected; it is promoted; the configuration has changed.
_EVENTS = ("+failover-state-select-slave", "+promoted-slave", "+switch-master")
_log = logging.getLogger("spark_streams.wire")
_LOOK_UP = 1.0  # seconds between two checks for open connections, and for a sentinel that was unavailable
_LISTEN = 60.0  # seconds on one connection: a dead connection looks like one without events


class SentinelWatch:
    """The connections to the master of one address, and the threads that listen for it. For any thread."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._connections: weakref.WeakKeyDictionary[Connection, Named] = weakref.WeakKeyDictionary()
        self._listening: set[Node] = set()
        self._refusing: set[Node] = set()  # sentinels that refuse SUBSCRIBE, already logged

    def add(self, server: Connection, named: Named) -> None:
        """Register a connection; it is closed when its master is being replaced. named: the report of that master."""
        with self._lock:
            self._connections[server] = named
            missing = [node for node in self._address.nodes if node not in self._listening]
            self._listening |= set(missing)
        for node in missing:
            threading.Thread(target=self._listen, args=(node,), name="rstream-sentinel", daemon=True).start()

    def _listen(self, node: Node) -> None:
        while self._is_needed_by(node):
            # An unavailable sentinel does not end the thread: the others publish the same events.
            with contextlib.suppress(redis.RedisError, OSError, UnknownMasterError):
                try:
                    self._listen_once(node)
                except ReplyError as error:
                    self._warn_once(node, error)
            time.sleep(_LOOK_UP)

    def _warn_once(self, node: Node, error: ReplyError) -> None:
        with self._lock:
            if node in self._refusing:
                return
            self._refusing.add(node)
        _log.warning(
            "the sentinel %s:%s does not let its user listen (%s): a master that is replaced while it lives is left "
            "late, and what it takes till then is lost; give that user the rights +sentinel +subscribe &*", *node, error
        )  # fmt: skip

    def _is_needed_by(self, node: Node) -> bool:
        """Whether there are open connections; if not, the sentinel's thread ends."""
        with self._lock:
            needed = any(server.is_open for server in self._connections)
            if not needed:
                self._listening.discard(node)
            return needed

    def _listen_once(self, node: Node) -> None:
        """Listen on one connection for a while. Raises what `ask` raises."""
        connection = open_connection(server_url.of_sentinel(self._address.url, node), _LOOK_UP, ANSWER_WITHIN)
        try:
            connected = socket_of(connection)
            connected.sendall(pack("SUBSCRIBE", *_EVENTS))
            reader, until = hiredis.Reader(replyError=ReplyError), time.monotonic() + _LISTEN
            while time.monotonic() < until and any(server.is_open for server in self._open_connections()):
                with contextlib.suppress(TimeoutError):
                    data = connected.recv(4096)
                    if not data:
                        return
                    reader.feed(data)
                has_news = False
                while (message := reader.gets()) is not False:
                    if isinstance(message, ReplyError):
                        raise message
                    has_news = True  # also the reply to SUBSCRIBE: the master may have changed before it
                if has_news:
                    self._leave(ask(self._address, node))
        finally:
            connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    def _open_connections(self) -> dict[Connection, Named]:
        with self._lock:
            return dict(self._connections)

    def _leave(self, now: Named) -> None:
        for server, named in self._open_connections().items():
            if now.replaces(named):
                server.abandon()


_lock = threading.Lock()
_watches: dict[str, SentinelWatch] = {}


def watch(address: Address, server: Connection, named: Named) -> None:
    """Close a connection to the master of this address when that master is being replaced."""
    with _lock:
        sentinel_watch = _watches.setdefault(address.url, SentinelWatch(address))
    sentinel_watch.add(server, named)
