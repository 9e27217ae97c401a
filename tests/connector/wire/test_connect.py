"""The one way to a server, by the kind of its address."""

from __future__ import annotations

import pytest

from spark_streams.connector.errors import ServerUnreachableError, UnsupportedError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect
from tools.servers.server import Server


def test_one_server_is_connected_to(server: Server) -> None:
    with connect(Address.parse(server.url)) as connection:
        assert connection.execute("PING") == b"PONG"


def test_a_server_that_is_no_node_of_a_cluster_says_so(redis_server: Server) -> None:
    """Not only with its first command."""
    url = redis_server.url.replace("redis://", "redis+cluster://").removesuffix("/0")
    with pytest.raises(UnsupportedError, match="is not a node of a cluster: write redis:// in place of"):
        connect(Address.parse(url))


def test_where_no_node_answers_each_is_named_and_no_login_shown() -> None:
    with pytest.raises(ServerUnreachableError) as caught:
        connect(Address.parse("redis+cluster://u:secret@127.0.0.1:1,127.0.0.1:2"))
    told = str(caught.value)
    assert "127.0.0.1:1. Connection refused" in told
    assert "127.0.0.1:2. Connection refused" in told
    assert "secret" not in told
