"""One connection to a stream server: redis-py makes and authenticates it, the bytes on it are ours.

Three ways to talk, from convenient to fast: `execute` (one command, one Python reply), `pipeline` (many commands, one
round trip; `each` hands out one reply at a time), `request`/`receive` (the untouched bytes of a reply, for
wire.entries.decode). Replies are RESP2. However much is sent, replies are taken in meanwhile (wire.connection.duplex).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar, cast

import hiredis
import redis

from spark_streams.errors import RStreamError, ServerUnreachableError, WrongKeyTypeError
from spark_streams.wire.address.address import Address
from spark_streams.wire.address.redis_py import opened, socket_of
from spark_streams.wire.connection.duplex import Duplex, TooMuchError
from spark_streams.wire.connection.named_errors import error_behind, login_error, login_refused, not_a_stream, remedy
from spark_streams.wire.connection.page_sizer import PageSizer

RENEW_EVERY = 5.0  # seconds, at least: whether there are other credentials
_READ_SIZE = 1 << 20
_log = logging.getLogger("spark_streams.wire")

# A pipeline goes out in pieces, two of which are under way.
_FIRST_PIECE, _LARGEST_PIECE, _PIECE_BYTES = 10, 2_000, 1 << 20  # commands, commands, bytes of their replies

T = TypeVar("T")
Argument = str | bytes | int
Reply = Any  # int, bytes, None, ReplyError or a list of these

_pack = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)


class ReplyError(Exception):
    """An error reply as a value: its text is the server's own. What it means, wire.replies.reply_errors tells."""

    @property
    def code(self) -> str:
        """The first word: OOM, LOADING, NOGROUP, ERR …"""
        return str(self).split(" ", 1)[0]


class ReplyTooLargeError(Exception):
    """A reply was larger than its reader would hold; the connection is closed, so that the server drops it, too."""


def pack(*arguments: Argument) -> bytes:
    """The RESP request of one command."""
    return _pack(arguments)


class Commands(ABC):
    """Commands and the named errors of their replies, for one server and for a cluster (wire.connection.server)."""

    address: Address

    @abstractmethod
    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """The replies of all commands in order; error replies stay values."""

    def execute_all(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """The same if none may fail. Raises the named error of the first reply that is one."""
        return self.checked(commands, self.pipeline(commands))

    def checked(self, commands: Iterable[Sequence[Argument]], replies: list[Reply]) -> list[Reply]:
        """The replies to these commands. Raises the named error of the first one that is an error."""
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                raise self.error_of(reply, command)
        return replies

    def error_of(self, reply: ReplyError, arguments: Iterable[Argument]) -> RStreamError:
        """The named error for an error reply to a command."""
        words = [a.decode("utf-8", "replace") if isinstance(a, bytes) else str(a) for a in arguments]
        return error_behind(self.address, reply.code, str(reply), words)

    def not_a_stream(self, key: str | bytes, command: str) -> WrongKeyTypeError:
        """The error for a key that holds something else; command: that was, or would be, refused for it."""
        name = key if isinstance(key, str) else key.decode("utf-8", "replace")
        return not_a_stream(self.address, name, command)


class Connection(Commands):
    """One socket to the server at `address`. Not for use by two threads at once. Closes as a context manager.

    one: which of the servers behind the address, where there are several (wire.connect chooses). Raises
    ServerUnreachableError when nothing answers, LoginError when the server refuses the login, NotPermittedError.
    """

    def __init__(self, address: Address, one: Address | None = None) -> None:
        self.address = address
        self.one = node = one or address
        url = node.resolve()
        self._login = None if address.identity is None else address.identity.credentials()
        self._renewal = time.monotonic() + RENEW_EVERY
        try:
            self._connection = opened(url, node.patience.reply, login=self._login)
        # What these errors of redis-py's say is in the message; what caused them says no more.
        except (redis.AuthenticationError, redis.ResponseError) as error:
            raise login_error(address, error) from None
        except (redis.RedisError, OSError) as error:
            why = f"{str(error).rstrip('.')}{address.beside()}"
            raise ServerUnreachableError(f"no stream server answers at {address}: {why}; {remedy(url, why)}") from None
        except (ValueError, TypeError) as error:
            raise ServerUnreachableError(f"the address {address} cannot be used: {error}", passes=False) from error
        self._duplex = Duplex(socket_of(self._connection), self.lost)
        self._reader = hiredis.Reader(replyError=ReplyError)
        self._end_token = secrets.token_hex(16).encode()
        self._end_request = pack("ECHO", self._end_token)
        self._end_reply = b"$%d\r\n%b\r\n" % (len(self._end_token), self._end_token)
        mark = secrets.token_hex(16).encode()
        self._mark_request = pack("ECHO", mark)
        self._mark_reply = b"$%d\r\n%b\r\n" % (len(mark), mark)
        self._may_be_silent = False
        try:
            self.execute("ECHO", self._end_token)  # without it `receive` would never see an end
        except RStreamError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; calling it twice is harmless."""
        self._connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed it, which says nothing of the other side."""
        return socket_of(self._connection) is not None

    def abandon(self) -> None:
        """Let whoever uses it lose it, from another thread: at once where they wait for a reply, else with the next."""
        if (connected := socket_of(self._connection)) is not None:
            with contextlib.suppress(OSError):  # it is closed
                socket.socket.shutdown(connected, socket.SHUT_RDWR)  # not TLS's, which is not for two threads

    def renew_login(self) -> None:
        """Log in again where there are other credentials by now: a token ends, and what was logged in with it may be
        shut out. For connections that live long, at moments when no reply is on its way; asked for every few seconds.

        A login that is refused changes nothing, and is tried again: the file may be ahead of the server. Raises
        ServerUnreachableError.
        """
        identity, now = self.address.identity, time.monotonic()
        if identity is None or not identity.changes or now < self._renewal:
            return
        self._renewal = now + RENEW_EVERY
        fresh = identity.credentials()
        if fresh == self._login:
            return
        (reply,) = self.pipeline([("AUTH", *fresh)])
        if isinstance(reply, ReplyError):
            _log.warning("%s; the connection goes on as it is", login_refused(self.address, reply).message)
        else:
            self._login = fresh

    # -- where keys are: all here (wire.connection.server) ------------------------------------------------------------

    def of(self, key: str | bytes) -> Connection:
        """The connection to the server that has this key: this one."""
        return self

    def parts(self, items: Sequence[T], key: Callable[[T], str | bytes]) -> list[tuple[Connection, list[T]]]:
        """The items by the servers that have their keys."""
        return [(self, list(items))] if items else []

    def together(self, items: Sequence[T], key: Callable[[T], str | bytes]) -> list[list[T]]:
        """The items by what one transaction may touch."""
        return [list(items)] if items else []

    def nodes(self) -> list[Connection]:
        """A connection to each server that takes writes."""
        return [self]

    def may_be_silent_for(self, seconds: float) -> None:
        """From now on the server is given up where it says nothing for so long."""
        self._duplex.timeout = seconds

    # -- bytes --------------------------------------------------------------------------------------------------------

    def require_silence(self) -> None:
        """Make sure, once, that this user may suppress replies (CLIENT REPLY). Raises ServerReplyError."""
        if not self._may_be_silent:
            self.execute("CLIENT", "REPLY", "ON")
            self._may_be_silent = True

    def send(self, data: bytes | memoryview) -> None:
        """Send raw request bytes; replies that come meanwhile are kept. Raises ServerUnreachableError."""
        self._duplex.send(data)

    def replies(self, count: int) -> list[Reply]:
        """The next `count` replies as Python values; error replies are ReplyError values in the list."""
        replies: list[Reply] = []
        gets, feed, receive = self._reader.gets, self._reader.feed, self._duplex.receive
        while len(replies) < count:
            reply = gets()
            if reply is False:
                feed(receive())  # type: ignore[arg-type]  # it takes any buffer
            else:
                replies.append(reply)
        return replies

    def execute(self, *arguments: Argument) -> Reply:
        """One command, one reply. Raises ServerReplyError (or its WRONGTYPE, NOGROUP kin) for an error reply."""
        self.send(pack(*arguments))
        reply = self.replies(1)[0]
        if isinstance(reply, ReplyError):
            raise self.error_of(reply, arguments)
        return reply

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """The replies of all commands in order, in one round trip; error replies stay values."""
        replies: list[Reply] = []
        for count in self._sent_in_turn(commands):
            replies += self.replies(count)
        return replies

    def each(self, commands: Sequence[Sequence[Argument]]) -> Iterator[Reply]:
        """The same, a reply at a time, for large ones: neither side holds many. Whoever does not take them all has lost
        the connection."""
        left = len(commands)
        try:
            for count in self._sent_in_turn(commands):
                for _ in range(count):
                    reply = self.replies(1)[0]
                    left -= 1
                    yield reply
        finally:
            if left:
                self.close()

    def _sent_in_turn(self, commands: Sequence[Sequence[Argument]]) -> Iterator[int]:
        """Send the commands a piece at a time; how many replies are to be read before the next piece goes out. The
        server always has one piece ahead, and pieces get smaller where replies are large."""
        sent, read, before = 0, 0, self._duplex.received
        sizer = PageSizer(_FIRST_PIECE, _LARGEST_PIECE, _PIECE_BYTES, growth=5)
        while sent < len(commands):
            piece = commands[sent : sent + sizer.size]
            self.send(b"".join([_pack(tuple(command)) for command in piece]))
            ahead = sent - read
            sent += len(piece)
            if ahead:
                yield ahead
                read += ahead
                sizer.learn(read, self._duplex.received - before)
        if sent > read:
            yield sent - read

    def request(self, *commands: bytes, most: int | None = None) -> None:
        """Send packed commands whose replies `receive` will hand over as one run of bytes.

        Raises ReplyTooLargeError when more than `most` bytes come before all is sent.
        """
        self._duplex.most = most
        try:
            self.send(b"".join([*commands, self._end_request]))
        except TooMuchError:
            self.close()
            raise ReplyTooLargeError from None
        self._duplex.most = None

    def request_apart(self, commands: Sequence[bytes], most: int | None = None) -> None:
        """Like `request`; `apart` cuts the run of bytes into one reply a command."""
        self.request(self._mark_request.join(commands), most=most)

    def apart(self, replies: memoryview) -> list[memoryview]:
        """One reply for each command of `request_apart`."""
        return [memoryview(reply) for reply in bytes(replies).split(self._mark_reply)]

    def receive(self, most: int | None = None) -> memoryview:
        """The untouched reply bytes of the last `request` (one or more replies back to back); one at a time.

        A request ends in an ECHO of a random token, so the end is known without parsing what comes before it.
        Raises ReplyTooLargeError when they are more than `most` bytes.
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
            if most is not None and filled > most:
                self.close()
                raise ReplyTooLargeError

    def fileno(self) -> int:
        """The file descriptor of the socket, for select and poll."""
        return socket_of(self._connection).fileno()

    @property
    def has_input(self) -> bool:
        """Whether bytes were received that nobody has taken yet; the socket itself is not asked."""
        return self._duplex.has_input

    def receive_some(self) -> memoryview:
        """The bytes that have come, one at least, for wire.connection.pipe; valid until the next call."""
        return self._duplex.receive()

    @property
    def mark(self) -> tuple[bytes, bytes]:
        """(request, reply) of an ECHO that no other reply can be mistaken for."""
        return self._end_request, self._end_reply

    def lost(self, error: OSError | None) -> ServerUnreachableError:
        """Close, and the error that says so; error: None where the server has closed the connection."""
        self.close()
        reason = "it closed the connection" if error is None else str(error) or type(error).__name__
        return ServerUnreachableError(f"lost the stream server at {self.address}: {reason}; is it still running?")
