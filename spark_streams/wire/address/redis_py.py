"""What is left to redis-py: to open a socket to one server, with TLS, login and database. The bytes on it are ours."""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping
from typing import Any, cast

import redis
from redis.connection import AbstractConnection

from spark_streams._version import __version__
from spark_streams.wire.address.identity import Credentials

CONNECT_TIMEOUT = 5.0  # seconds


@functools.cache
def _driver_info() -> dict[str, redis.DriverInfo]:
    """Who connects, for CLIENT LIST. Looked up once: redis-py takes longer for that than for connecting."""
    if not hasattr(redis, "DriverInfo"):  # redis-py below 7.2
        return {}
    return {"driver_info": redis.DriverInfo().add_upstream_driver("spark-streams", __version__)}


def opened(
    url: str, reply: float, patience: float = CONNECT_TIMEOUT, login: Credentials | None = None
) -> AbstractConnection:
    """A connection of redis-py's, logged in. url: of one server; reply: seconds that it may be silent; patience: that
    connecting may take; login: where the URL has none. Raises what redis-py raises, and ValueError or TypeError for a
    URL that it cannot use."""
    who = {} if login is None else dict(zip(("username", "password")[-len(login) :], login, strict=True))
    pool = redis.ConnectionPool.from_url(
        url, protocol=2, socket_timeout=reply, socket_connect_timeout=patience, **who, **_tls(url), **_driver_info()
    )
    connection = cast(AbstractConnection, pool.make_connection())
    connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    return connection


def _tls(url: str) -> dict[str, bool]:
    """Have the certificate's host checked, where the URL does not say otherwise: redis-py 5 does not by itself, and
    cannot where no certificate is asked for."""
    return {"ssl_check_hostname": understood(url).get("ssl_cert_reqs") != "none"} if url.startswith("rediss:") else {}


def understood(url: str) -> Mapping[str, Any]:
    """What redis-py reads from the URL of one server: host, port, path, ssl_ca_certs … Raises ValueError, TypeError."""
    return cast(Mapping[str, Any], redis.connection.parse_url(url))  # type: ignore[no-untyped-call]


def socket_of(connection: AbstractConnection) -> socket.socket:
    """Its socket; None once it is disconnected, whatever the type says.

    The one private part of redis-py that is used (it has no public name for it), which is why its next major version
    is shut out: tests/wire/address/test_redis_py.py says what is expected of it.
    """
    return cast(socket.socket, connection._sock)
