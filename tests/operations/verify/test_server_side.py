"""A run touches only keys and connections of its own."""

from __future__ import annotations

import contextlib

import pytest
import redis

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.operations.verify import server_side
from spark_streams.operations.verify.running_query import RunPlan
from tools.servers.server import Server

PREFIX = "rstream-verify-00ff"
PLANS = [RunPlan(PREFIX, 1, 60, {}, one_slot=one_slot) for one_slot in (False, True)]
OWN = [name for plan in PLANS for name in (*plan.streams, plan.out, plan.dead)]
OWN += [key_beside(name, "lease", PREFIX, "spark").decode() for name in OWN]
OWN += [f"rstream:session:{PREFIX}:t"]
OF_QUERY = ["rstream:sink:1-2-3", "rstream:told:1-2-3"]
OTHERS = ["orders", "rstream:runs", "rstream:lease:{orders}:g:spark", f"other:{PREFIX}", "rstream:sink:1-2-4", "{run}"]
OTHERS += [name.replace("00ff", "00fe") for name in OWN]


def test_only_own_keys_are_found_and_deleted(server: Server, client: redis.Redis) -> None:
    for key in (*OWN, *OF_QUERY, *OTHERS):
        client.set(key, 1)
    with connect(Address.parse(server.url)) as connected:
        assert server_side.own_keys(connected, PREFIX) == sorted(key.encode() for key in OWN)
        assert server_side.delete_own_keys(connected, PREFIX, "1-2-3") == len(OWN) + len(OF_QUERY)
        assert server_side.delete_own_keys(connected, PREFIX, None) == 0
    assert sorted(client.keys()) == sorted(OTHERS)


def test_only_connections_of_the_name_are_closed(server: Server) -> None:
    names = [PREFIX, PREFIX, f"{PREFIX}1", f"x-name={PREFIX}", ""]
    with contextlib.ExitStack() as closing:
        others = [closing.enter_context(server.client(single_connection_client=True)) for _ in names]
        for client, name in zip(others, names, strict=True):
            client.client_setname(name)
        with connect(Address.parse(server.url)) as connected:
            assert server_side.kill_connections(connected, PREFIX) == 2
        left = {line["name"] for line in others[-1].client_list()}
        assert left >= {*names[2:]}
        assert PREFIX not in left


def test_the_facts_have_version_and_settings(server: Server) -> None:
    with connect(Address.parse(server.url)) as connected:
        about = server_side.about(connected)
    assert str(Address.parse(server.url)) in about["server"]
    assert "appendonly no" in about["its settings"]


def test_a_single_server_has_no_master_to_replace(server: Server) -> None:
    with pytest.raises(UnsupportedError, match="nothing can take over"):
        server_side.master_of(Address.parse(server.url), "orders")
