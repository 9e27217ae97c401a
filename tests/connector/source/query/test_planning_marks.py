"""Commands that create and set groups, and their commit marks."""

from __future__ import annotations

import pytest
import redis

from spark_streams.connector.errors import ServerFullError
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.query.planning import begin_batches
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.full_server import full
from tools.driving import ALL, NEVER_AHEAD, add, reader
from tools.servers.server import Server


def test_the_mark_of_a_begin_is_replaced_or_stays(server: Server, client: redis.Redis) -> None:
    """A full server refuses the mark of the first batch. Without any mark, a later comparison would believe that the
    server has returned to an older state, or that nothing was read: the error is retried, and ends the query by name.
    """
    add(client, 3)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = Offset.from_json(one.latestOffset(start, ALL))
    member = one.batches_from(start)[0].member
    key = committed_key("s", member.group, member.consumer)
    before = client.get(key)
    assert before is not None
    with Connection(Address.parse(server.url)) as connection:
        with full(server), pytest.raises(ServerFullError, match="SET rstream:committed:"):
            begin_batches(GroupClient(connection, member), end, ["s"])
        assert client.get(key) == before
        begin_batches(GroupClient(connection, member), end, ["s"])
    assert client.get(key) not in (None, before)
    one.stop()
