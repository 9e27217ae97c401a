"""With the rights that docs/reference/access.md lists, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_streams.connector.errors import LoginError, NotPermittedError
from spark_streams.connector.keys import slot_of
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect, invalidate_topology
from tests.connector.deadletter.making import DEAD, fill, redrive
from tests.legs.identity.documented_rights import besides, rights
from tests.legs.redis_cluster.piping import STREAMS, Piping
from tools.servers.cluster import ClusterServer, RedisCluster
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

IN_A_CLUSTER = besides("a [cluster]")


class Limited:
    """The cluster as a user of these rights sees it."""

    def __init__(self, cluster: RedisCluster) -> None:
        self.url = cluster.url.replace("://", "://app:secret@")
        self.server: Server = ClusterServer("redis", self.url)


# What these tests do, by the users of the docs.
RIGHTS = " ".join(
    dict.fromkeys(
        word
        for given in (
            *[rights("reader", stream=stream, dead=DEAD) for stream in (*STREAMS, "o:*")],
            *[rights("writer", out=out) for out in ("s*", "out-*", "other")],
            *[rights("redrive", stream=stream, dead=DEAD) for stream in ("s*", "other")],
        )
        for word in given
        if word not in ("reset", "on")
    )
)


def allow(cluster: RedisCluster, words: str) -> None:
    for port in cluster.ports:
        cluster.command(port, "ACL", "SETUSER", "app", "reset", "on", ">secret", *words.split())


@pytest.fixture
def limited(cluster: RedisCluster) -> Iterator[Limited]:
    allow(cluster, f"{RIGHTS} {IN_A_CLUSTER}")
    yield Limited(cluster)
    for port in cluster.ports:
        cluster.command(port, "ACL", "DELUSER", "app")


def test_source_sink_and_dead_letters_need_no_others(cluster: RedisCluster, limited: Limited) -> None:
    piping = Piping(limited)
    piping.at_least(100)
    cluster.move(slot_of(b"s0"), next(port for port in cluster.masters() if port != cluster.owner("s0")))
    piping.at_least(100)
    piping.end()
    assert piping.nothing_is_lost_or_doubled() >= 200
    fill(cluster.server, 20, stream="other")
    assert redrive(limited.server).moved == 20


def test_what_is_missing_is_named(cluster: RedisCluster, limited: Limited) -> None:
    allow(cluster, RIGHTS)
    address = Address.parse(limited.url)
    invalidate_topology(address)  # a map that another test has read
    with pytest.raises(NotPermittedError) as refused:
        connect(address)
    assert "no right to run CLUSTER SLOTS" in refused.value.message
    assert "ACL SETUSER USER '+cluster|slots'" in refused.value.message
    with pytest.raises(LoginError) as caught:
        connect(Address.parse(limited.url.replace("secret", "wrong-one")))
    assert "wrong-one" not in str(caught.value)


def test_who_may_not_ask_for_the_epoch_goes_on(cluster: RedisCluster, limited: Limited) -> None:
    allow(cluster, f"{RIGHTS} +cluster|slots")
    invalidate_topology(Address.parse(limited.url))
    with connect(Address.parse(limited.url)) as server:
        server.execute_all([("XADD", stream, "*", "n", 1) for stream in STREAMS])
