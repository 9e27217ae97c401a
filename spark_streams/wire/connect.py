"""The one way to a server: whatever kind its address is of, a connection to whoever serves there now."""

from __future__ import annotations

from spark_streams.errors import UnsupportedError
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection


def connect(address: Address) -> Connection:
    """A new connection; closes as a context manager.

    Raises ServerUnreachableError when nothing answers, LoginError when the server refuses the login, NotPermittedError,
    UnsupportedError for a cluster.
    """
    if address.is_cluster or address.asks_sentinels:
        scheme = address.url.split("://", 1)[0]
        raise UnsupportedError(f"{scheme}:// is not available yet; give one server as redis://host:port/db")
    return Connection(address)
