"""The sockets of connections: redis-py opens them, and `Duplex` reads replies while a request cannot be sent."""

from __future__ import annotations

import functools
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, cast

import redis
from redis.connection import AbstractConnection

from spark_streams.base.version import __version__

# -- a socket to one server, with TLS, login and database, as redis-py opens it ----------------------------------------

CONNECT_TIMEOUT = 5.0  # seconds


@functools.cache
def _driver_info() -> dict[str, redis.DriverInfo]:
    """Return the client's name for CLIENT LIST. Cached: redis-py needs longer for it than for connecting."""
    if not hasattr(redis, "DriverInfo"):  # redis-py below 7.2
        return {}
    return {"driver_info": redis.DriverInfo().add_upstream_driver("spark-streams", __version__)}


def open_connection(
    url: str, reply: float, patience: float = CONNECT_TIMEOUT, login: tuple[str, ...] | None = None
) -> AbstractConnection:
    """Return a connection of redis-py, logged in.

    url: one server. reply: seconds of silence allowed. patience: seconds to connect. login: if the URL has none. Raises
    redis-py's errors, and ValueError or TypeError for a URL that it cannot use.
    """
    who = {} if login is None else dict(zip(("username", "password")[-len(login) :], login, strict=True))
    pool = redis.ConnectionPool.from_url(
        url, protocol=2, socket_timeout=reply, socket_connect_timeout=patience, **who, **_tls(url), **_driver_info()
    )
    connection = cast(AbstractConnection, pool.make_connection())
    connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    return connection


def _tls(url: str) -> dict[str, Any]:
    """Check the certificate's host, unless the URL says otherwise: redis-py 5 does not by default, and it cannot if
    certificates are not verified. The lowest version is named, because Debian's Python leaves it to OpenSSL's settings.
    """
    if not url.startswith("rediss:"):
        return {}
    checks_host = parse_server_url(url).get("ssl_cert_reqs") != "none"
    return {"ssl_check_hostname": checks_host, "ssl_min_version": ssl.TLSVersion.TLSv1_2}


def parse_server_url(url: str) -> Mapping[str, Any]:
    """Return what redis-py reads from the URL of one server: host, port, path, … Raises ValueError, TypeError."""
    return cast(Mapping[str, Any], redis.connection.parse_url(url))  # type: ignore[no-untyped-call]


def socket_of(connection: AbstractConnection) -> socket.socket:
    """Return the socket of a connection; None after it is disconnected, in spite of the type.

    This is the only private attribute of redis-py in use (there is no public one). Therefore the next major version of
    redis-py is excluded; tests/connector/wire/test_sockets_redis_py.py tests the expectations.
    """
    return cast(socket.socket, connection._sock)


# -- sockets that are written and read at the same time ----------------------------------------------------------------

# A client that sends a megabyte of commands and reads nothing meanwhile can block: the replies fill the buffers of both
# sides, and then both wait. Here sending never waits without reading. Bytes that arrive meanwhile are stored, and
# returned first.

READ_SIZE = 1 << 18
_BLOCKED = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# Makes the error for a broken connection, and closes it; None: the server has closed it.
Lost = Callable[[OSError | None], Exception]


class TooMuchError(Exception):
    """More bytes arrived while a request was sent than its sender stores."""


class Gaps:
    """Drops what arrives between two marks, unparsed: replies that the server would not suppress."""

    def __init__(self, mark: bytes) -> None:
        self._mark, self._begun = mark, b""  # no reply contains the mark; the part of one that has arrived
        self._is_open = False  # the next mark ends a gap

    def around(self, data: memoryview) -> bytes:
        """Return the bytes outside of gaps."""
        kept = list[bytes]()
        *pieces, last = (self._begun + bytes(data)).split(self._mark)
        for piece in pieces:
            kept += [] if self._is_open else [piece]
            self._is_open = not self._is_open
        sizes = range(min(len(self._mark) - 1, len(last)), 0, -1)
        end = len(last) - next((size for size in sizes if self._mark.startswith(last[-size:])), 0)
        self._begun = last[end:]
        return b"".join(kept if self._is_open else [*kept, last[:end]])


class Duplex:
    """A connected socket, which becomes non-blocking; `lost` makes its errors.

    timeout: seconds without any progress, at first the socket's timeout. received: bytes so far. max_kept: bytes that
    may arrive while a request is sent; None: no limit.
    """

    def __init__(self, connected: socket.socket, lost: Lost) -> None:
        self.timeout = connected.gettimeout()
        connected.setblocking(False)
        self._socket = connected
        self._lost = lost
        self._inbox = bytearray()  # arrived while a request was sent, and not returned yet
        self._buffer = memoryview(bytearray(READ_SIZE))
        self.received = 0
        self.max_kept: int | None = None
        self._readable, self._either = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._either.register(connected, select.POLLIN | select.POLLOUT)

    def send(self, data: bytes | memoryview) -> None:
        """Send all of the data. Raises TooMuchError if more than `max_kept` bytes arrive meanwhile."""
        unsent = memoryview(data)
        while unsent:
            try:
                unsent = unsent[self._socket.send(unsent) :]
            except _BLOCKED:
                self._wait(self._either)
                count = self._receive_available(self._buffer)
                self._inbox += self._buffer[:count]
                if self.max_kept is not None and len(self._inbox) > self.max_kept:
                    raise TooMuchError from None
            except OSError as error:
                raise self._lost(error) from None

    @property
    def has_input(self) -> bool:
        """Whether bytes that arrived during a send are not returned yet."""
        return bool(self._inbox)

    def receive(self) -> memoryview:
        """Return available bytes, at least one; valid until the next call."""
        return self._buffer[: self.receive_into(self._buffer)]

    def receive_into(self, buffer: memoryview) -> int:
        """Read available bytes into `buffer`; return how many, at least one."""
        if self._inbox:
            count = min(len(buffer), len(self._inbox))
            buffer[:count] = memoryview(self._inbox)[:count]
            del self._inbox[:count]
            return count
        while not (count := self._receive_available(buffer)):
            self._wait(self._readable)
        return count

    def _receive_available(self, buffer: memoryview) -> int:
        """Read available bytes; 0: none yet."""
        try:
            count = self._socket.recv_into(buffer)
        except _BLOCKED:
            return 0
        except OSError as error:
            raise self._lost(error) from None
        if not count:
            raise self._lost(None)
        self.received += count
        return count

    def _wait(self, poll: select.poll) -> None:
        if not poll.poll(None if self.timeout is None else self.timeout * 1000):
            raise self._lost(TimeoutError(f"no answer for {self.timeout:g} s"))
