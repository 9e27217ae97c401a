"""One connection to a stream server: redis-py makes and authenticates it, the bytes on it are ours.

Three ways to talk, from convenient to fast: `execute` (one command, one Python reply), `pipeline` (many commands, one
round trip), `request`/`receive` (the untouched bytes of a reply, for wire.decode). Replies are RESP2.
"""

from __future__ import annotations

import functools
import secrets
import socket
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, cast

import hiredis
import redis
from redis.connection import AbstractConnection

from spark_streams import __version__
from spark_streams.errors import (
    GroupMissingError,
    RStreamError,
    ServerReplyError,
    ServerUnreachableError,
    WrongKeyTypeError,
)
from spark_streams.wire.address import Address

CONNECT_TIMEOUT = 5.0  # seconds
REPLY_TIMEOUT = 60.0  # seconds without a single byte
_READ_SIZE = 1 << 20

Argument = str | bytes | int
Reply = Any  # int, bytes, None, ReplyError or a list of these


@functools.cache
def _driver_info() -> dict[str, Any]:
    """Who connects, for CLIENT LIST. Looked up once: redis-py takes longer for that than for connecting."""
    if not hasattr(redis, "DriverInfo"):  # redis-py below 7.2
        return {}
    return {"driver_info": redis.DriverInfo().add_upstream_driver("spark-streams", __version__)}


class ReplyError(Exception):
    """An error reply as a value: its text is the server's own."""


class ReplyTooLargeError(Exception):
    """A reply was larger than its reader would hold; the connection is closed, so that the server drops it, too."""


def pack(*arguments: Argument) -> bytes:
    """The RESP request of one command."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        raw = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


class Connection:
    """One socket to the server at `address`. Not for use by two threads at once. Closes as a context manager.

    Raises ServerUnreachableError when nothing answers, ServerReplyError when the server refuses the login.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        url = address.resolve()
        try:
            pool = redis.ConnectionPool.from_url(
                url,
                protocol=2,
                socket_timeout=REPLY_TIMEOUT,
                socket_connect_timeout=CONNECT_TIMEOUT,
                **_driver_info(),
            )
            self._connection = cast(AbstractConnection, pool.make_connection())
            self._connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        except (redis.AuthenticationError, redis.ResponseError) as error:
            raise ServerReplyError(f"{address} refused the connection: {error}") from error
        except (redis.RedisError, OSError) as error:
            raise ServerUnreachableError(
                f"no stream server answers at {address}: {error}; start one there, or set url (or RSTREAM_URL)"
            ) from error
        except (ValueError, TypeError) as error:
            raise ServerUnreachableError(f"the address {address} cannot be used: {error}") from error
        # redis-py has no public name for the socket.
        self._socket = cast(socket.socket, self._connection._sock)
        self._reader = hiredis.Reader(replyError=ReplyError)
        self._end_token = secrets.token_hex(16).encode()
        self._end_request = pack("ECHO", self._end_token)
        self._end_reply = b"$%d\r\n%b\r\n" % (len(self._end_token), self._end_token)
        mark = secrets.token_hex(16).encode()
        self._mark_request = pack("ECHO", mark)
        self._mark_reply = b"$%d\r\n%b\r\n" % (len(mark), mark)
        self._may_be_silent = False
        self.execute("ECHO", self._end_token)  # without it `receive` would never see an end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; calling it twice is harmless."""
        self._connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    def require_silence(self) -> None:
        """Make sure, once, that this user may suppress replies (CLIENT REPLY). Raises ServerReplyError."""
        if not self._may_be_silent:
            self.execute("CLIENT", "REPLY", "ON")
            self._may_be_silent = True

    def send(self, data: bytes | memoryview) -> None:
        """Send raw request bytes. Raises ServerUnreachableError."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self.lost(error) from error

    def replies(self, count: int) -> list[Reply]:
        """The next `count` replies as Python values; error replies are ReplyError values in the list."""
        found: list[Reply] = []
        while len(found) < count:
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._receive_some())
            else:
                found.append(reply)
        return found

    def execute(self, *arguments: Argument) -> Reply:
        """One command, one reply. Raises ServerReplyError (or its WRONGTYPE, NOGROUP kin) for an error reply."""
        self.send(pack(*arguments))
        reply = self.replies(1)[0]
        if isinstance(reply, ReplyError):
            raise self.error_of(reply, arguments)
        return reply

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """All commands in one write, all replies in order; error replies stay values."""
        if not commands:
            return []
        self.send(b"".join([pack(*command) for command in commands]))
        return self.replies(len(commands))

    def execute_all(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """The same where none may fail. Raises the named error of the first reply that is one."""
        replies = self.pipeline(commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                raise self.error_of(reply, command)
        return replies

    def request(self, *commands: bytes) -> None:
        """Send packed commands whose replies `receive` will hand over as one run of bytes."""
        self.send(b"".join([*commands, self._end_request]))

    def request_apart(self, commands: Sequence[bytes]) -> None:
        """Like `request`; `apart` cuts the run of bytes into one reply a command."""
        self.request(self._mark_request.join(commands))

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
            try:
                got = self._socket.recv_into(view[filled : filled + _READ_SIZE])
            except OSError as error:
                raise self.lost(error) from error
            if got == 0:
                raise self.lost(None)
            filled += got
            if filled >= len(tail) and view[filled - len(tail) : filled] == tail:
                return view[: filled - len(tail)]
            if most is not None and filled > most:
                self.close()
                raise ReplyTooLargeError

    def error_of(self, reply: ReplyError, arguments: Iterable[Argument]) -> RStreamError:
        """The named error for an error reply to a command."""
        words = [a.decode("utf-8", "replace") if isinstance(a, bytes) else str(a) for a in arguments]
        text = str(reply)
        where = f"{' '.join(words[:4])[:200]} at {self.address}"
        if text.startswith("WRONGTYPE"):
            key = words[2] if words[0] in ("XGROUP", "XINFO") else words[1]
            return WrongKeyTypeError(
                f"key {key!r} at {self.address} holds something that is not a stream; name another key ({words[0]})"
            )
        if text.startswith("NOGROUP"):
            return GroupMissingError(
                f"{where}: the stream or its consumer group is gone ({text}): restore it, or take a new checkpoint"
                + (" (embedded: forgets its streams when it ends)" if self.address.forgets else "")
            )
        return ServerReplyError(f"{where} was answered with: {text}")

    def _receive_some(self) -> bytes:
        try:
            data = self._socket.recv(_READ_SIZE)
        except OSError as error:
            raise self.lost(error) from error
        if not data:
            raise self.lost(None)
        return data

    @property
    def raw_socket(self) -> socket.socket:
        """The socket, for wire.pipe."""
        return self._socket

    @property
    def mark(self) -> tuple[bytes, bytes]:
        """(request, reply) of an ECHO that no other reply can be mistaken for."""
        return self._end_request, self._end_reply

    def lost(self, error: OSError | None) -> ServerUnreachableError:
        """Close, and the error that says so; error: None where the server has closed the connection."""
        self.close()
        reason = "it closed the connection" if error is None else str(error) or type(error).__name__
        return ServerUnreachableError(f"lost the stream server at {self.address}: {reason}; is it still running?")
