"""A redis-py client for any kind of address: one server, a cluster, or the master that sentinels name."""

from __future__ import annotations

from typing import Any

import redis

from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.address.server_url import master_name


def client_of(url: str, **options: Any) -> Any:
    """Return a client that uses RESP2 and decodes text."""
    settings = {"protocol": 2, "decode_responses": True, **options}
    address = Address.parse(url)
    if address.is_cluster:
        nodes = [redis.cluster.ClusterNode(*node) for node in address.nodes]  # type: ignore[no-untyped-call]
        return redis.RedisCluster(startup_nodes=nodes, **settings)
    if address.asks_sentinels:
        sentinels = redis.Sentinel(list(address.nodes), sentinel_kwargs={"protocol": 2})  # type: ignore[no-untyped-call]
        return sentinels.master_for(master_name(url), **settings)  # type: ignore[no-untyped-call]
    return redis.Redis.from_url(url, **settings)


def is_several(url: str) -> bool:
    """Whether the servers of this address replace each other."""
    address = Address.parse(url)
    return address.is_cluster or address.asks_sentinels
