"""The one way to a server: whatever kind its address is of, a connection to whoever serves there now."""

from __future__ import annotations

from spark_streams.errors import UnsupportedError
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection


def connect(address: Address) -> Connection:
    """A new connection; closes as a context manager.

    Raises ServerUnreachableError when nothing answers, LoginError when the server refuses the login, NotPermittedError,
    ServerReplyError where a master is being replaced, UnsupportedError for a cluster.
    """
    if address.is_cluster:
        scheme = address.url.split("://", 1)[0]
        raise UnsupportedError(f"{scheme}:// is not available yet; give one server as redis://host:port/db")
    if address.asks_sentinels:
        from spark_streams.wire.sentinel import connect_to_master
        from spark_streams.wire.sentinel_watch import watch

        server, named = connect_to_master(address)
        watch(address, server, named)
        return server
    return Connection(address)
