"""The one way to a server, by the kind of its address."""

from __future__ import annotations

import pytest

from spark_streams.errors import UnsupportedError
from spark_streams.wire.address import Address
from spark_streams.wire.connect import connect
from tests.servers import Server


def test_one_server_is_connected_to(server: Server) -> None:
    with connect(Address.parse(server.url)) as connection:
        assert connection.execute("PING") == b"PONG"


def test_a_cluster_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="redis[+]cluster:// is not available yet; give one server"):
        connect(Address.parse("redis+cluster://u:secret@a:1,b:2"))
