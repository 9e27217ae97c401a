"""The one way to a server: whatever kind its address is of, a connection to whoever serves there now."""

from __future__ import annotations

from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import Connection
from spark_streams.wire.connection.server import Server


def connect(address: Address, repeats: bool = False) -> Server:
    """A new connection, or those to a cluster; closes as a context manager. repeats: whoever uses it repeats what it
    does where a slot of a cluster has moved, and is told; else that is followed.

    Raises ServerUnreachableError when nothing answers, LoginError when the server refuses the login, NotPermittedError,
    ServerReplyError where a master is being replaced, UnsupportedError where an address of a cluster leads to none.
    """
    if address.is_cluster:
        from spark_streams.wire.topology.cluster import Cluster

        return Cluster(address, follows=not repeats)
    if address.asks_sentinels:
        from spark_streams.wire.topology.sentinel import connect_to_master
        from spark_streams.wire.topology.sentinel_watch import watch

        server, named = connect_to_master(address)
        watch(address, server, named)
        return server
    return Connection(address)


def mistrust(address: Address) -> None:
    """Whoever was connected to this address has lost it, or was sent elsewhere: look anew."""
    if address.is_cluster:
        from spark_streams.wire.topology.topology import forget

        forget(address)
