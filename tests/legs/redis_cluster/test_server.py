"""A cluster as one server: each command where its key is, whatever moves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from spark_streams.connector.errors import NotAllowedError, ServerReplyError, UnsupportedError
from spark_streams.connector.keys import key_beside, slot_of
from spark_streams.connector.options.access_options import server_of
from spark_streams.connector.wire import topology
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import Connection, Server
from spark_streams.connector.wire.scan import list_streams, matching_streams, streams_if_few
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.topology import SlotMap, topology_of
from tools.servers.cluster import RedisCluster

NAMES = [f"s{n}" for n in range(12)]


@pytest.fixture
def server(cluster: RedisCluster) -> Iterator[Server]:
    with connect(Address.parse(cluster.url)) as made:
        yield made


def test_a_node_that_is_allowed_names_others_that_are_not_listed(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RSTREAM_ALLOW_HOSTS lists whom options may name; who operates a listed cluster decides which nodes it has."""
    first, *others = (f"127.0.0.1:{port}" for port in cluster.ports)
    monkeypatch.setenv("RSTREAM_ALLOW_HOSTS", first)
    with connect(server_of({"url": f"redis+cluster://{first}"}, "sink")) as made:
        for name in NAMES:
            made.execute("XADD", name, "*", "n", 1)
        assert len(made.nodes()) == 3
    for seeds in (others[0], f"{first},{others[0]}"):
        with pytest.raises(NotAllowedError, match=f"host {others[0]} is refused: RSTREAM_ALLOW_HOSTS"):
            server_of({"url": f"redis+cluster://{seeds}"}, "sink")


def elsewhere(cluster: RedisCluster, key: str) -> int:
    """A master that does not have this key."""
    return next(port for port in cluster.masters() if port != cluster.owner(key))


def half_moved(cluster: RedisCluster, slot: int, keys: list[str]) -> int:
    """The slot is on its way to another node, and these keys are there; which one."""
    before = cluster.owner_of_slot(slot)
    to = next(port for port in cluster.masters() if port != before)
    cluster.command(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(before))
    cluster.command(before, "CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(to))
    for key in keys:
        cluster.command(before, "MIGRATE", "127.0.0.1", to, key, 0, 5000)
    return to


def stable(cluster: RedisCluster, slot: int, to: int) -> None:
    """It has come there."""
    before = cluster.owner_of_slot(slot)
    while keys := cluster.command(before, "CLUSTER", "GETKEYSINSLOT", slot, 10):
        cluster.command(before, "MIGRATE", "127.0.0.1", to, "", 0, 5000, "KEYS", *keys)
    for port in (to, before):
        cluster.command(port, "CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(to))


def test_slots_are_those_that_the_server_says(cluster: RedisCluster) -> None:
    names = [
        b"",
        b"a",
        b"{a}b",
        b"{}a",
        b"a{b}c{d}",
        b"a}b{c}",
        b"{",
        b"x{{y}}z",
        "schlüssel".encode(),
        b"\x00\xff{\r\n}",
    ]
    names += [key_beside(name, "sink", "q") for name in names if name]
    for name in names:
        assert slot_of(name) == cluster.command(cluster.ports[0], "CLUSTER", "KEYSLOT", name), name


def test_replies_come_in_the_order_of_the_commands(server: Server) -> None:
    assert len(server.parts(NAMES, lambda name: name)) == 3
    for n, name in enumerate(NAMES):
        server.execute_all([("XADD", name, "*", "n", n)] * n)
    assert server.pipeline([("TIME",), *[("XLEN", name) for name in NAMES]])[1:] == list(range(12))
    assert list(server.execute_each([("XLEN", name) for name in NAMES * 30])) == list(range(12)) * 30
    assert server.pipeline([("XLEN", name) for name in NAMES * 200]) == list(range(12)) * 200
    assert server.execute("EXISTS", *NAMES) == 11
    assert server.execute("DEL", *NAMES) == 11


def test_streams_are_found_on_every_node(server: Server) -> None:
    server.execute_all([("XADD", name, "*", "n", 1) for name in NAMES])
    server.execute("SET", "no-stream", "x")
    assert list_streams(server) == sorted(name.encode() for name in NAMES)
    assert matching_streams(server, "s1*", ["s10"]) == ["s1", "s11"]
    assert streams_if_few(server) == sorted(NAMES)


def test_a_slot_that_has_moved_is_followed(cluster: RedisCluster, server: Server) -> None:
    server.execute("XADD", "s", "*", "n", 1)
    cluster.move(slot_of(b"s"), elsewhere(cluster, "s"))
    assert server.execute("XLEN", "s") == 1
    assert topology_of(server.address).node_of(slot_of(b"s"))[1] == cluster.owner("s")


def test_commands_of_one_slot_stay_in_order_though_the_map_changes_between_them(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = topology_of(server.address)
    owners = itertools.cycle(known.masters())
    monkeypatch.setattr(known, "node_of", lambda slot: next(owners))
    server.execute_all([("XADD", "s", "*", "n", n) for n in range(6)])
    monkeypatch.undo()
    assert [fields[1] for _, fields in server.execute("XRANGE", "s", "-", "+")] == [b"%d" % n for n in range(6)]


def test_a_repeated_request_reports_that_a_slot_has_moved(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it knows of the old node may not be so on the new one."""
    monkeypatch.setattr(topology, "_EVERY", 30.0)  # which could hear of the move before
    with connect(Address.parse(f"{cluster.url}/0"), repeats=True) as server:  # an address that no other test watches
        server.execute("XADD", "s", "*", "n", 1)
        cluster.move(slot_of(b"s"), elsewhere(cluster, "s"))
        with pytest.raises(ServerReplyError) as caught:
            server.execute("XLEN", "s")
        assert caught.value.code == "MOVED"
    with Session(Address.parse(cluster.url)) as session:
        assert session.run(lambda server: server.execute("XLEN", "s")) == 1


@pytest.mark.parametrize("known_by", ["the map", "MOVED"])
def test_a_new_connection_asks_no_node_that_has_left(
    known_by: str, cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process knows is of any age: the watch of its map ends with the last connection."""
    monkeypatch.setattr(topology, "_EVERY", 30.0)
    address, stream = Address.parse(f"{cluster.url}/0"), f"of a node that {known_by} names"
    home, slot, port = cluster.owner(stream), slot_of(stream.encode()), cluster.meet()
    if known_by == "the map":
        cluster.move(slot, port)
    with connect(address) as server:
        server.execute("XADD", stream, "*", "n", 1)
        cluster.move(slot, port)
        assert server.execute("XLEN", stream) == 1
        assert topology_of(address).node_of(slot)[1] == port
    cluster.move(slot, home)
    cluster.leave(port)
    with connect(address) as server:
        assert server.execute("XLEN", stream) == 1


def test_the_answer_to_an_interrupted_question_is_not_taken_for_that_to_the_next(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a notebook."""
    known, slot = topology_of(Address.parse(f"{cluster.url}/0")), slot_of(b"s")
    known.refresh()
    monkeypatch.setattr(Connection, "replies", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        known.refresh()
    monkeypatch.undo()
    cluster.move(slot, elsewhere(cluster, "s"))
    assert known.refresh().owners[slot] == ("127.0.0.1", cluster.owner("s"))


def test_a_key_is_asked_for_where_its_slot_is_on_its_way_to(cluster: RedisCluster, server: Server) -> None:
    server.execute_all([("XADD", "s", "*", "n", 1), ("XADD", "{s}2", "*", "n", 1)])
    to = half_moved(cluster, slot_of(b"s"), ["s"])
    try:
        assert server.pipeline([("XLEN", "s"), ("XLEN", "{s}2"), ("XLEN", "{s}3")]) == [1, 1, 0]
        with pytest.raises(ServerReplyError) as caught:
            server.execute("DEL", "s", "{s}2")
        assert caught.value.code in ("TRYAGAIN", "ASK")
        assert list_streams(server) == [b"s", b"{s}2"]
        with pytest.raises(ServerReplyError) as caught:
            server.pipeline([("MULTI",), ("XADD", "s", "*", "n", 2), ("EXEC",)])
        assert caught.value.code == "ASK"
    finally:
        stable(cluster, slot_of(b"s"), to)
    assert server.execute("XLEN", "s") == 1


def test_a_transaction_is_for_one_slot(server: Server) -> None:
    with pytest.raises(UnsupportedError, match="a transaction over 2 slots of a cluster"):
        server.pipeline([("MULTI",), ("SET", "a", 1), ("SET", "b", 1), ("EXEC",)])
    server.execute_all([("WATCH", "a"), ("GET", "a")])
    with pytest.raises(UnsupportedError, match="a transaction over 2 slots of a cluster"):
        server.pipeline([("MULTI",), ("SET", "b", 1), ("EXEC",)])
    assert server.pipeline([("GET", "a"), ("GET", "b")]) == [None, None]


def test_a_transaction_fails_where_something_watched_has_changed(cluster: RedisCluster, server: Server) -> None:
    transaction = [("MULTI",), ("SET", "a", "mine"), ("EXEC",)]
    server.execute("WATCH", "a")
    assert server.pipeline(transaction)[-1] == [b"OK"]
    server.execute("WATCH", "a")
    cluster.command(cluster.owner("a"), "SET", "a", "theirs")
    assert server.pipeline(transaction)[-1] is None
    server.execute("WATCH", "a")
    cluster.command(cluster.owner("a"), "SET", "a", "theirs again")
    server.execute("UNWATCH")
    assert server.pipeline(transaction)[-1] == [b"OK"]


def test_a_transaction_fails_where_the_slot_has_moved_since_its_watch(cluster: RedisCluster, server: Server) -> None:
    server.execute_all([("SET", "a", "x"), ("WATCH", "a")])
    cluster.move(slot_of(b"a"), elsewhere(cluster, "a"))
    assert server.execute("GET", "a") == b"x"  # and it is known by now
    assert server.pipeline([("MULTI",), ("SET", "a", "mine"), ("EXEC",)])[-1] is None
    assert server.execute("GET", "a") == b"x"


def test_what_all_nodes_would_have_to_be_asked_is_refused(server: Server) -> None:
    with pytest.raises(UnsupportedError, match="WAIT is not for a cluster as a whole"):
        server.execute("WAIT", 1, 0)


def test_one_node_with_a_keyed_command_of_another_says_how_it_is_done(cluster: RedisCluster) -> None:
    url = f"redis://127.0.0.1:{elsewhere(cluster, 's')}"
    with (
        connect(Address.parse(url)) as server,
        pytest.raises(UnsupportedError, match="is a node of a cluster, and other nodes hold some of the keys: write"),
    ):
        server.execute("XLEN", "s")


def test_a_map_from_names_that_a_node_does_not_give() -> None:
    """Where it has none to be known by, it is the one that was asked; and whoever may not ask for the epoch goes on."""
    slots = [[8000, 16383, [b"other", 2]], [0, 7999, [None, 1], [b"?", 3], [b"", 4]]]
    told = SlotMap.read(("here", 9), slots, Exception("NOPERM"))
    assert (told.masters, told.replicas) == ((("here", 1), ("other", 2)), (("here", 3), ("here", 4)))
    assert (told.owners[0], told.owners[8000], told.is_ok, told.epoch) == (("here", 1), ("other", 2), True, 0)
