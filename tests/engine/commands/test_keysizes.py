"""INFO keysizes: how many streams have how many entries. The same lines on every server that counts streams there."""

from __future__ import annotations

import redis

from tests.engine.wire import wire
from tools.servers.server import Server, skip_without_stream_sizes


def sizes(server: Server) -> dict[str, str]:
    """Of each database; Redis also has lines of other types."""
    with wire(server) as client:
        lines = client.call("INFO", "keysizes").decode().splitlines()
    assert lines[0] == "# Keysizes"
    values = dict(line.split(":") for line in lines[1:] if line)
    return {name.split("_")[0]: value for name, value in values.items() if name.endswith("_distrib_streams_items")}


def add(client: redis.Redis, stream: str, entries: int) -> None:
    client.xgroup_create(stream, "g", mkstream=True)
    pipe = client.pipeline(transaction=False)
    for number in range(entries):
        pipe.xadd(stream, {"n": number}, id=f"{number + 1}-0")
    pipe.execute()


def test_streams_are_counted_by_the_power_of_two_below_their_entries(server: Server) -> None:
    with server.client() as client:
        skip_without_stream_sizes(client)
        assert sizes(server) == {}
        for entries in (0, 1, 2, 3, 7, 8, 1023, 1024, 2048):
            add(client, f"s{entries}", entries)
        client.set("text", "no stream")
        assert sizes(server) == {"db0": "0=1,1=1,2=2,4=1,8=1,512=1,1K=1,2K=1"}


def test_whatever_changes_a_stream_or_its_key_is_counted(server: Server) -> None:
    with server.client() as client:
        skip_without_stream_sizes(client)
        add(client, "s", 8)
        client.copy("s", "t")
        assert sizes(server) == {"db0": "8=2"}
        client.xdel("s", "8-0")
        client.xtrim("t", maxlen=0)
        assert sizes(server) == {"db0": "0=1,4=1"}
        client.rename("t", "s")
        assert sizes(server) == {"db0": "0=1"}
        client.swapdb(0, 3)
        assert sizes(server) == {"db3": "0=1"}
        client.flushall()
        assert sizes(server) == {}


def test_the_section_is_among_those_that_info_has_by_default(engine_server: Server) -> None:
    with engine_server.client() as client:
        client.flushall()
        add(client, "s", 5)
    with wire(engine_server) as connection:
        for words in ((), ("all",), ("everything",), ("KEYSIZES",)):
            assert b"# Keysizes\r\ndb0_distrib_streams_items:4=1\r\n" in connection.call("INFO", *words), words
