"""One connection to a stream server: redis-py opens and authenticates it; this module sends and reads the bytes.

Three ways to send commands, from convenient to fast: `execute` (one command, one Python reply), `execute_all` (many
commands, one round trip; `execute_each` yields one reply at a time), `request`/`receive` (the raw bytes of a reply, for
wire.entry_page). Replies are RESP2. Replies are read while a request is sent (wire.sockets).

An error is not an answer: each of these raises the named error of an error reply. A caller for which an error is an
answer (`no such key`: there is no such stream) names it, by a function of wire.replies; it then gets this
error as a value. Only `pipeline` returns all errors as values: for package wire, and for commands that show them
(tests/project/test_layout.py names the packages that never call it).
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

import hiredis
import redis

from spark_streams.connector.errors import LoginError, RStreamError, ServerUnreachableError, WrongKeyTypeError
from spark_streams.connector.wire import named_errors
from spark_streams.connector.wire.address import Address, EngineSocket
from spark_streams.connector.wire.parts import have_long, in_parts, joined
from spark_streams.connector.wire.sockets import Duplex, Gaps, TooMuchError, open_connection, socket_of

# -- how many entries to request, so that a reply has about the wanted size --------------------------------------------

_CUT = 100  # factor by which a page is made smaller after a page that was too large
_LESS = 4  # the same after a connection that broke


@dataclass
class PageSizer:
    """The size of a page, learned from earlier pages."""

    size: int  # entries (or commands) of the next page
    largest: int  # upper limit of `size`
    page_bytes: int  # target size of a reply
    growth: int = 10  # factor by which a page may be larger than the one before

    def learn(self, entries: int, received: int) -> None:
        """Learn from a reply with this number of entries and bytes. A reply without entries changes nothing."""
        if entries:
            fitting = self.page_bytes * entries // max(1, received)
            self.size = max(1, min(self.largest, self.growth * self.size, fitting))

    def too_large(self, requested: int | None = None) -> None:
        """Reduce the size: the reply to `requested` entries (None: a whole page) exceeded the limit."""
        self.size = max(1, (self.size if requested is None else requested) // _CUT)

    def lost(self) -> None:
        """Reduce size and target: the connection broke before a reply was complete. The server may close it if more
        bytes are unread (client-output-buffer-limit)."""
        self.size, self.page_bytes = max(1, self.size // _LESS), max(1, self.page_bytes // _LESS)


# -- the connection ----------------------------------------------------------------------------------------------------

RENEW_EVERY = 5.0  # seconds between two checks for renewed credentials
_MEMORY_AGE = 1.0  # seconds; each entry of a page may be refused because the memory is full
_READ_SIZE = 1 << 20
_log = logging.getLogger("spark_streams.wire")

# A pipeline is sent in pieces; two of them are outstanding at a time.
_FIRST_PIECE, _LARGEST_PIECE, _PIECE_BYTES = 10, 2_000, 1 << 20  # commands, commands, bytes of their replies

_EXEC_REFUSED = "EXECABORT Transaction discarded because of: "  # then the error, such as OOM …

T = TypeVar("T")
Argument = str | bytes | int
Key = str | bytes
Reply = Any  # int, bytes, None, ReplyError or a list of these
Known = Callable[[Reply], bool]  # whether a reply is an error that is an answer (wire.replies)

_pack = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)


class ReplyError(Exception):
    """An error reply as a value, with the server's text. wire.replies interprets it."""

    @property
    def code(self) -> str:
        """The first word: OOM, LOADING, NOGROUP, ERR … If EXEC was refused for such a state, its word."""
        return str(self).removeprefix(_EXEC_REFUSED).split(" ", 1)[0]


def _is_refused(reply: Reply) -> bool:
    """Whether the user may not send a command, or the server does not know it."""
    return isinstance(reply, ReplyError) and reply.code in ("NOPERM", "ERR")


class ReplyTooLargeError(Exception):
    """A reply exceeded the reader's limit. The connection is closed, so that the server drops it, too."""


def each_reply(raw: bytes | memoryview) -> Iterator[Reply]:
    """Yield the replies in a row as Python values; error replies stay values.

    Raises hiredis.ProtocolError at the first byte that belongs to no reply.
    """
    reader = hiredis.Reader(replyError=ReplyError)
    reader.feed(raw)  # type: ignore[arg-type]  # it takes any buffer
    while (reply := reader.gets()) is not False:
        yield reply


def parse_replies(raw: bytes | memoryview) -> list[Reply]:
    return list(each_reply(raw))


def pack(*arguments: Argument) -> bytes:
    """Return the RESP request of one command. Surrogates stand for bytes that are not UTF-8."""
    try:
        return _pack(arguments)
    except UnicodeEncodeError:
        return _pack(
            tuple(word.encode("utf-8", "surrogateescape") if isinstance(word, str) else word for word in arguments)
        )


SKIP = pack("CLIENT", "REPLY", "SKIP")  # the server sends no reply to the next command


class Server(ABC):
    """One server, or all of a cluster. Not for use by two threads at once. Usable as a context manager.

    One server is a `Connection`, and `connection_for` returns itself. A cluster (wire.cluster) sends each
    command to the node of its key's slot, and returns the connections to its nodes for raw requests. No server of a
    cluster handles several slots together: WATCH and MULTI are for the keys of one slot, and a caller with several keys
    groups them with `together`.
    """

    address: Address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close all connections; calling it twice is harmless."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it was not closed here; the server may have closed it."""

    @abstractmethod
    def renew_login(self) -> None:
        """Log in again if the credentials have changed. Raises ServerUnreachableError."""

    # -- commands: each is sent to the server of its key -------------------------------------------------------------

    @abstractmethod
    def execute(self, *arguments: Argument) -> Reply:
        """Send one command and return its reply. Raises ServerReplyError (WrongKeyTypeError, …) for an error reply."""

    @abstractmethod
    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Return the replies of all commands in order; error replies stay values. For package wire."""

    @abstractmethod
    def execute_each(self, commands: Sequence[Sequence[Argument]], *known: Known) -> Iterator[Reply]:
        """As `execute_all`, but yield one reply at a time, for large replies: neither side stores many."""

    def execute_all(self, commands: Sequence[Sequence[Argument]], *known: Known) -> list[Reply]:
        """Return the answers to all commands in order. Raises as `answer` does, the first error."""
        return self.checked(commands, self.pipeline(commands), *known)

    def checked(self, commands: Iterable[Sequence[Argument]], replies: list[Reply], *known: Known) -> list[Reply]:
        """Return the replies to these commands, if they are answers. Raises as `answer` does, the first error."""
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                self.answer(command, reply, *known)
        return replies

    def answer(self, command: Iterable[Argument], reply: Reply, *known: Known) -> Reply:
        """Return the reply to a command, if it is an answer. known: errors that are answers, too: they stay values.
        Raises the named error of any other error reply."""
        if isinstance(reply, ReplyError) and not any(is_answer(reply) for is_answer in known):
            raise self.error_of(reply, command)
        return reply

    def error_of(self, reply: ReplyError, arguments: Iterable[Argument]) -> RStreamError:
        """Return the named error of an error reply to a command."""
        words = [a.decode("utf-8", "replace") if isinstance(a, bytes) else str(a) for a in arguments]
        memory = self.memory() if reply.code == named_errors.FULL else named_errors.Memory()
        return named_errors.error_behind(self.address, reply.code, str(reply), words, memory)

    @abstractmethod
    def memory(self) -> named_errors.Memory:
        """Return the memory of the server; of a cluster: of its fullest node. Unknown if it does not answer."""

    def not_a_stream(self, key: Key, command: str) -> WrongKeyTypeError:
        """Return the error for a key of another type. command: the command that was, or would be, refused for it."""
        name = key if isinstance(key, str) else key.decode("utf-8", "replace")
        return named_errors.not_a_stream(self.address, name, command)

    # -- location of keys ------------------------------------------------------------------------------------------

    @abstractmethod
    def connection_for(self, key: Key) -> Connection:
        """Return the connection to the server that holds this key. Raises ServerUnreachableError, ServerReplyError."""

    @abstractmethod
    def parts(self, items: Sequence[T], key: Callable[[T], Key]) -> list[tuple[Connection, list[T]]]:
        """Group the items by the servers that hold their keys, in order. Raises as `connection_for` does."""

    @abstractmethod
    def together(self, items: Sequence[T], key: Callable[[T], Key]) -> list[list[T]]:
        """Group the items so that one transaction may touch each group."""

    @abstractmethod
    def nodes(self) -> list[Connection]:
        """Return a connection to each server that accepts writes. Raises as `connection_for` does."""


class Connection(Server):
    """One socket to the server at `address`. Not for use by two threads at once. Usable as a context manager.

    node_address: one of several servers of the address (wire.connect selects it). Raises ServerUnreachableError if no
    server answers, LoginError if the server refuses the login, NotPermittedError.
    """

    def __init__(self, address: Address, node_address: Address | None = None) -> None:
        self.address = address
        self.node_address = node = node_address or address
        url = node.resolve()
        self._login = None if address.identity is None else address.identity.credentials()
        self._renewal = time.monotonic() + RENEW_EVERY
        try:
            self._connection = open_connection(url, node.patience.reply, login=self._login)
        # The message has the text of redis-py's error; its cause adds nothing.
        except (redis.AuthenticationError, redis.ResponseError) as error:
            raise named_errors.login_error(address, error) from None
        except (redis.RedisError, OSError) as error:
            why = f"{str(error).rstrip('.')}{address.machine_hint()}"
            raise ServerUnreachableError(
                f"no stream server answers at {address}: {why}; {named_errors.remedy(url, why)}"
            ) from None
        except (ValueError, TypeError) as error:
            raise ServerUnreachableError(f"the address {address} cannot be used: {error}", passes=False) from error
        self._engine_socket = EngineSocket.of(node, url)
        self._duplex = Duplex(socket_of(self._connection), self.lost)
        self._reader = hiredis.Reader(replyError=ReplyError)
        self._end_token = secrets.token_hex(16).encode()
        self._end_request = pack("ECHO", self._end_token)
        self._end_reply = b"$%d\r\n%b\r\n" % (len(self._end_token), self._end_token)
        mark = secrets.token_hex(16).encode()
        self._mark_request = pack("ECHO", mark)
        self._mark_reply = b"$%d\r\n%b\r\n" % (len(mark), mark)
        self._separated = 1  # commands of the last `request_separately`
        self._is_silent: bool | None = None  # whether the server suppresses replies, once it was asked
        self._gaps = Gaps(self._mark_reply)
        self._has_all_keys = address.is_cluster  # of a cluster, all nodes are known
        self._memory = (-math.inf, named_errors.Memory())  # time of the question, the answer
        try:
            self.execute("ECHO", self._end_token)  # without ECHO, `receive` would never see an end
        except RStreamError:
            self.close()
            raise

    def close(self) -> None:
        self._connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    @property
    def is_open(self) -> bool:
        return socket_of(self._connection) is not None

    def abandon(self) -> None:
        """Break the connection from another thread: its user gets an error now, if it waits for a reply, or at the next
        use.
        """
        if (connected := socket_of(self._connection)) is not None:
            with contextlib.suppress(OSError):  # it is closed
                socket.socket.shutdown(connected, socket.SHUT_RDWR)  # not TLS's shutdown, which is not thread-safe

    def renew_login(self) -> None:
        """A token expires, and its connections may be closed by the server.

        For long-lived connections, when no reply is outstanding; checked every few seconds. If the server refuses the
        new login, or the file has none, the connection continues and a later call tries again.
        """
        identity, now = self.address.identity, time.monotonic()
        if identity is None or not identity.changes or now < self._renewal:
            return
        self._renewal = now + RENEW_EVERY
        try:
            fresh = identity.credentials()
            reply = self.pipeline([("AUTH", *fresh)])[0] if fresh != self._login else None
            if isinstance(reply, ReplyError):
                raise named_errors.login_refused(self.address, reply)
            self._login = fresh
        except LoginError as error:
            _log.warning("%s; the connection continues with the earlier login", error.message)

    def memory(self) -> named_errors.Memory:
        """At most a second old. Unknown also if the user may not ask."""
        asked, memory = self._memory
        if time.monotonic() - asked > _MEMORY_AGE:
            # A connection of its own: replies may be outstanding on this one.
            with contextlib.suppress(RStreamError), Connection(self.address, self.node_address) as asking:
                memory = named_errors.Memory.read(asking.pipeline([named_errors.ASK])[0])
            self._memory = (time.monotonic(), memory)
        return memory

    # -- location of keys: all on this server --------------------------------------------------------------------------

    def connection_for(self, key: Key) -> Connection:
        return self

    def parts(self, items: Sequence[T], key: Callable[[T], Key]) -> list[tuple[Connection, list[T]]]:
        return [(self, list(items))] if items else []

    def together(self, items: Sequence[T], key: Callable[[T], Key]) -> list[list[T]]:
        return [list(items)] if items else []

    def nodes(self) -> list[Connection]:
        return [self]

    def require_all_keys(self) -> None:
        """Check once that no other server holds keys of the same database. Raises UnsupportedError for a node of a
        cluster. (A cluster of one node holds all of its keys.)"""
        if self._has_all_keys:
            return
        [hello] = self.pipeline([("HELLO",)])  # which any user may send
        is_told = not isinstance(hello, ReplyError)
        has_part = is_told and b"cluster" in hello
        if has_part or not is_told:
            [info] = self.pipeline([("CLUSTER", "INFO")])
            has_part = b"cluster_size:1\r\n" not in info if isinstance(info, bytes) else has_part
        if has_part:
            raise named_errors.node_of_a_cluster(self.address)
        self._has_all_keys = True

    def may_be_silent_for(self, seconds: float) -> None:
        """Set the seconds of silence after which the connection is closed."""
        self._duplex.timeout = seconds

    # -- bytes --------------------------------------------------------------------------------------------------------

    def is_silent(self) -> bool:
        """Ask once whether this user may suppress replies (CLIENT REPLY). Raises ServerReplyError."""
        if self._is_silent is None:
            [reply] = self.execute_all([("CLIENT", "REPLY", "ON")], _is_refused)
            self._is_silent = not isinstance(reply, ReplyError)
        return self._is_silent

    def silenced(self, command: bytes) -> bytes:
        """Return a packed command without a reply; `next_reply` drops a reply that the server does not suppress."""
        return SKIP + command if self._is_silent else self._mark_request + command + self._mark_request

    def send(self, data: bytes | memoryview) -> None:
        """Send raw request bytes; replies that arrive meanwhile are stored. Raises ServerUnreachableError."""
        self._duplex.send(data)

    def next_answer(self, command: Iterable[Argument], *known: Known) -> Reply:
        """Return the next reply, which is to this command, as `answer` does. Before an error is raised the connection
        is closed: further replies are unread, or one too many arrives (CLIENT REPLY itself was refused)."""
        reply = self.next_reply()
        if isinstance(reply, ReplyError):
            try:
                self.answer(command, reply, *known)
            except RStreamError:
                self.close()
                raise
        return reply

    def replies(self, count: int) -> list[Reply]:
        """Return the next `count` replies as Python values; error replies are ReplyError values."""
        next_reply = self.next_reply
        return [next_reply() for _ in range(count)]

    def next_reply(self) -> Reply:
        """Return the next reply as a Python value; an error reply is a ReplyError value."""
        while (reply := self._reader.gets()) is False:
            data = self._duplex.receive()
            self._reader.feed(self._gaps.around(data) if self._is_silent is False else data)  # type: ignore[arg-type]
        return reply

    def execute(self, *arguments: Argument) -> Reply:
        if have_long([arguments]):
            return self.execute_all([arguments])[0]
        self.send(pack(*arguments))
        reply = self.replies(1)[0]
        if isinstance(reply, ReplyError):
            raise self.error_of(reply, arguments)
        return reply

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        if have_long(commands):
            parts = [in_parts(command) for command in commands]
            return joined(commands, parts, iter(self.pipeline([part for of_one in parts for part in of_one])))
        replies: list[Reply] = []
        for count in self._sent_in_turn(commands):
            replies += self.replies(count)
        return replies

    def execute_each(self, commands: Sequence[Sequence[Argument]], *known: Known) -> Generator[Reply, None, None]:
        """If the caller does not take all replies, the connection is closed."""
        if have_long(commands):
            yield from self.execute_all(commands, *known)
            return
        unread = len(commands)
        try:
            for count in self._sent_in_turn(commands):
                for _ in range(count):
                    reply = self.next_reply()
                    unread -= 1
                    if isinstance(reply, ReplyError):
                        self.answer(commands[-unread - 1], reply, *known)
                    yield reply
        finally:
            if unread:
                self.close()

    def _sent_in_turn(self, commands: Sequence[Sequence[Argument]]) -> Iterator[int]:
        """Send the commands in pieces; yield how many replies to read before the next piece is sent.

        The server always has one piece ahead, and pieces become smaller if replies are large.
        """
        sent, read, before = 0, 0, self._duplex.received
        sizer = PageSizer(_FIRST_PIECE, _LARGEST_PIECE, _PIECE_BYTES, growth=5)
        while sent < len(commands):
            piece = commands[sent : sent + sizer.size]
            self.send(b"".join([pack(*command) for command in piece]))
            ahead = sent - read
            sent += len(piece)
            if ahead:
                yield ahead
                read += ahead
                sizer.learn(read, self._duplex.received - before)
        if sent > read:
            yield sent - read

    def request(self, *commands: bytes, max_bytes: int | None = None) -> None:
        """Send packed commands; `receive` returns their replies as one run of bytes.

        Raises ReplyTooLargeError if more than `max_bytes` arrive before all is sent.
        """
        self._duplex.max_kept = max_bytes
        try:
            self.send(b"".join([*commands, self._end_request]))
        except TooMuchError:
            self.close()
            raise ReplyTooLargeError from None
        self._duplex.max_kept = None

    def request_separately(self, commands: Sequence[bytes], max_bytes: int | None = None) -> None:
        """As `request`; `split_replies` then cuts the run of bytes into one reply per command."""
        self._separated = len(commands)
        self.request(self._mark_request.join(commands), max_bytes=max_bytes)

    def split_replies(self, replies: memoryview) -> list[memoryview]:
        """Return one reply for each command of `request_separately`. Raises the named error if a mark between them was
        refused."""
        parts = [memoryview(reply) for reply in bytes(replies).split(self._mark_reply)]
        if len(parts) != self._separated:
            for reply in each_reply(replies):
                self.answer(("ECHO",), reply)
        return parts

    def receive(self, max_bytes: int | None = None) -> memoryview:
        """Return the raw reply bytes of the last `request` (one or more replies in a row); one request at a time.

        A request ends with an ECHO of a random token, so the end is found without parsing the replies before it.
        Raises ReplyTooLargeError if they exceed `max_bytes`.
        """
        tail = self._end_reply
        size = 2 * _READ_SIZE
        buffer = bytearray(size)
        filled = 0
        view = memoryview(buffer)
        while True:
            if size - filled < _READ_SIZE:
                size *= 2
                grown = bytearray(size)
                grown[:filled] = view[:filled]
                buffer, view = grown, memoryview(grown)
            filled += self._duplex.receive_into(view[filled : filled + _READ_SIZE])
            if filled >= len(tail) and view[filled - len(tail) : filled] == tail:
                return view[: filled - len(tail)]
            if max_bytes is not None and filled > max_bytes:
                self.close()
                raise ReplyTooLargeError

    def fileno(self) -> int:
        return socket_of(self._connection).fileno()

    @property
    def has_input(self) -> bool:
        """Whether received bytes are stored; does not check the socket."""
        return self._duplex.has_input

    def receive_some(self) -> memoryview:
        """Return available bytes, at least one, for a Pipe; valid until the next call."""
        return self._duplex.receive()

    @property
    def mark(self) -> tuple[bytes, bytes]:
        """(request, reply) of an ECHO with a token that no other reply contains."""
        return self._end_request, self._end_reply

    def lost(self, error: OSError | None) -> ServerUnreachableError:
        """Close, and return the error. error: None if the server has closed the connection."""
        self.close()
        removed = None if self._engine_socket is None else self._engine_socket.removed(self.address)
        if removed is not None:
            return removed
        reason = "it closed the connection" if error is None else str(error) or type(error).__name__
        return ServerUnreachableError(f"lost the stream server at {self.address}: {reason}; is it still running?")
