"""Opens connections with redis-py: a socket to one server, with TLS, login and database."""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import Mapping
from typing import Any, cast

import redis
from redis.connection import AbstractConnection

from spark_streams.base.version import __version__
from spark_streams.connector.wire.address.identity import Credentials

CONNECT_TIMEOUT = 5.0  # seconds


@functools.cache
def _driver_info() -> dict[str, redis.DriverInfo]:
    """Return the client's name for CLIENT LIST. Cached: redis-py needs longer for it than for connecting."""
    if not hasattr(redis, "DriverInfo"):  # redis-py below 7.2
        return {}
    return {"driver_info": redis.DriverInfo().add_upstream_driver("spark-streams", __version__)}


def open_connection(
    url: str, reply: float, patience: float = CONNECT_TIMEOUT, login: Credentials | None = None
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
    redis-py is excluded; tests/connector/wire/address/test_redis_py.py tests the expectations.
    """
    return cast(socket.socket, connection._sock)
