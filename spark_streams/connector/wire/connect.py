"""Connects to the servers of an address, whatever its kind is."""

from __future__ import annotations

from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.connection import Connection
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.left_master import register


def connect(address: Address, repeats: bool = False) -> Server:
    """Return a new connection, or the connections to a cluster; usable as a context manager.

    repeats: the caller repeats a step if a slot of a cluster has moved, and gets the error; else redirections are
    followed.

    Raises ServerUnreachableError if no server answers, LoginError if the server refuses the login, NotPermittedError,
    ServerReplyError while a master is being replaced, UnsupportedError if an address of a cluster leads to none.
    """
    if address.is_cluster:
        from spark_streams.connector.wire.topology.cluster import Cluster

        return Cluster(address, follows=not repeats)
    if address.asks_sentinels:
        from spark_streams.connector.wire.topology.sentinel import connect_to_master
        from spark_streams.connector.wire.topology.sentinel_watch import watch

        server, named = connect_to_master(address)
        watch(address, server, named)
        return server
    connection = Connection(address)
    register(connection)
    return connection


def invalidate_topology(address: Address) -> None:
    """Refresh the topology before its next use: a connection to this address was lost or redirected."""
    if address.is_cluster:
        from spark_streams.connector.wire.topology.topology import forget

        forget(address)
