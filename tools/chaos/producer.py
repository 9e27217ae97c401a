"""The producer of `rstream verify` over a URL, with a client for what else a test does on the server."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.server_url import master_name
from spark_streams.operations.verify import producer


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


class Producer(producer.Producer):
    """Adds entries to streams of one server, or of several that replace each other.

    patience: seconds to wait for a reply, before the outcome is unknown.
    """

    def __init__(self, url: str, name: str = "p", patience: float | None = None) -> None:
        # A retry inside the client would hide an unknown outcome, and send a number twice. With several servers
        # redis-py always retries, so numbers are sent by `sender` instead.
        once = {} if is_several(url) else {"retry": Retry(NoBackoff(), 0)}
        self.client: Any = client_of(url, socket_timeout=patience, **once)
        super().__init__(producer.sender(Address.parse(url)) if is_several(url) else self._send, name)

    def _send(self, stream: str, entries: list[dict[str, Any]]) -> list[Any]:
        """Return the replies. None: the outcome of the entry is unknown."""
        pipe = self.client.pipeline(transaction=False)
        for fields in entries:
            pipe.xadd(stream, fields)
        try:
            return list(pipe.execute(raise_on_error=False))
        except redis.RedisError:
            return [None] * len(entries)
