"""Fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.connection import Connection
from tools.servers.server import Server


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    """A connection of ours to the server."""
    with Connection(Address.parse(server.url)) as one:
        yield one
