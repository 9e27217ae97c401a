"""A server that does not count what its streams were given: refused, because losses there could not be told."""

from __future__ import annotations

from typing import Any

import pytest

from spark_streams.errors import UnsupportedError
from spark_streams.wire.connection.connection import Connection, ReplyError
from tools.driving import add, drain, reader
from tools.servers.server import Server

# As Redis 6.2 words it.
UNKNOWN = "ERR wrong number of arguments for 'xsetid' command"


def test_a_query_from_redis_6_is_refused_by_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Connection.pipeline

    def old(self: Connection, commands: Any) -> Any:
        if commands and commands[0][0] == "XSETID":
            return [ReplyError(UNKNOWN)]
        return honest(self, commands)

    monkeypatch.setattr(Connection, "pipeline", old)
    with pytest.raises(
        UnsupportedError, match="Redis before 7.0 has no entries-added and entries-read.* Use Redis 7.0 or later"
    ):
        reader(server).initialOffset()


def test_redis_itself_is_read(redis_server: Server) -> None:
    """Which version this is, scripts/test --servers chooses."""
    with redis_server.client() as client:
        client.flushall()
    reader(redis_server).initialOffset()


def test_being_asked_leaves_nothing_on_the_server(server: Server) -> None:
    with server.client(decode_responses=True) as client:
        add(client, 3)
        one = reader(server, noAck="true")
        assert drain(one) == [[0, 1, 2]]
        assert not client.exists("rstream:none")
