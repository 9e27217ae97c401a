"""SADD SREM SISMEMBER SMEMBERS."""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import Reply, SetOf, bulks, integer


def _set(client: Client, key: bytes) -> set[bytes]:
    return client.db.get_as(key, set) or set()


@command("sadd", -3, "write denyoom fast", (1, 1, 1))
def sadd(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SADD key member …"""
    value = _set(client, args[1])
    before = len(value)
    value.update(args[2:])
    added = len(value) - before
    if added:
        client.db.set(args[1], value, keep_ttl=True, changes=added)
    return integer(added)


@command("srem", -3, "write fast", (1, 1, 1))
def srem(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SREM key member …"""
    value = _set(client, args[1])
    before = len(value)
    value.difference_update(args[2:])
    removed = before - len(value)
    if removed:
        client.db.remove_if_empty(args[1], removed)
    return integer(removed)


@command("sismember", 3, "readonly fast", (1, 1, 1))
def sismember(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SISMEMBER key member"""
    return integer(args[2] in _set(client, args[1]))


@command("smembers", 2, "readonly", (1, 1, 1))
def smembers(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SMEMBERS key"""
    return SetOf(bulks(_set(client, args[1])))
