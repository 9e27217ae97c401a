"""A set is created while others use the stream: a newer Valkey breaks a WATCH of a stream whenever a group changes."""

from __future__ import annotations

import pytest

from spark_streams.connector.errors import ShardsError
from spark_streams.connector.keys import shards_key
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.shards.shard_sets import ensure_shards
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tools.sending import Act, before_sending
from tools.servers.server import Server


def claiming(server: Server, stream: str) -> Act:
    """Workers of the stream: before each EXEC, an entry changes its consumer."""
    calls: list[str] = []

    def act(*_: object) -> None:
        with server.client() as client:
            if not calls:
                client.xgroup_create(stream, "workers", id="0", mkstream=True)
                client.xadd(stream, {"n": 0}, id="1-0")
                client.xreadgroup("workers", "one", {stream: ">"})
            client.xclaim(stream, "workers", f"c{len(calls)}", 0, ["1-0"])
        calls.append(stream)

    return act


def test_a_plain_stream_that_its_workers_read_is_refused_at_once(watched_server: Server) -> None:
    act = claiming(watched_server, "orders")
    act(Connection, b"")  # type: ignore[arg-type]
    with Connection(Address.parse(watched_server.url)) as connection:
        with before_sending(b"XLEN", act=act) as asked, pytest.raises(ShardsError, match="plain stream with 1 entries"):
            ensure_shards(connection, "orders", 3, "key")
        assert len(asked) == 1
        assert connection.execute("EXISTS", shards_key("orders")) == 0


def test_a_stream_that_comes_and_is_read_meanwhile_is_refused_at_the_second_look(watched_server: Server) -> None:
    with Connection(Address.parse(watched_server.url)) as connection:
        with (
            before_sending(b"EXEC", act=claiming(watched_server, "orders")) as tried,
            pytest.raises(ShardsError, match="plain stream with 1 entries"),
        ):
            ensure_shards(connection, "orders", 3, "key")
        assert len(tried) == 1
        assert connection.execute("EXISTS", shards_key("orders")) == 0


def test_workers_of_a_shard_do_not_hold_up_the_set(watched_server: Server) -> None:
    """Its shards are read before the set is complete, and its key is written again after it was lost."""
    with Connection(Address.parse(watched_server.url)) as connection:
        assert ensure_shards(connection, "orders", 3, "key").is_created
        connection.execute("DEL", shards_key("orders"))
        with before_sending(b"EXEC", act=claiming(watched_server, shards_of("orders", 3)[1])) as tried:
            assert ensure_shards(connection, "orders", 3, "key").is_created
        assert len(tried) == 1
