"""SADD SREM SISMEMBER SMEMBERS SCARD, and of lists the little that tests of WRONGTYPE need: LPUSH, LLEN, LRANGE."""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.commands.arguments import integer_of
from spark_streams.engine.commands.table import command
from spark_streams.engine.core import Engine
from spark_streams.engine.replies import Array, Reply, SetOf, bulks, integer


def _set(client: Client, key: bytes) -> set[bytes]:
    return client.db.get_as(key, set) or set()


@command("sadd", -3, "write denyoom fast", (1, 1, 1))
def sadd(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SADD key member …"""
    value = _set(client, args[1])
    before = len(value)
    value.update(args[2:])
    if len(value) != before:
        client.db.set(args[1], value, keep_ttl=True)
    return integer(len(value) - before)


@command("srem", -3, "write fast", (1, 1, 1))
def srem(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SREM key member …"""
    value = _set(client, args[1])
    before = len(value)
    value.difference_update(args[2:])
    if len(value) != before:
        if value:
            client.db.touch(args[1])
        else:
            client.db.remove(args[1])
    return integer(before - len(value))


@command("sismember", 3, "readonly fast", (1, 1, 1))
def sismember(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SISMEMBER key member"""
    return integer(args[2] in _set(client, args[1]))


@command("smembers", 2, "readonly", (1, 1, 1))
def smembers(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SMEMBERS key"""
    return SetOf(bulks(_set(client, args[1])))


@command("scard", 2, "readonly fast", (1, 1, 1))
def scard(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SCARD key"""
    return integer(len(_set(client, args[1])))


@command("lpush", -3, "write denyoom fast", (1, 1, 1))
def lpush(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LPUSH key element …"""
    value = client.db.get_as(args[1], list) or []
    value[:0] = args[:1:-1]
    client.db.set(args[1], value, keep_ttl=True)
    return integer(len(value))


@command("llen", 2, "readonly fast", (1, 1, 1))
def llen(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LLEN key"""
    return integer(len(client.db.get_as(args[1], list) or []))


@command("lrange", 4, "readonly", (1, 1, 1))
def lrange(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LRANGE key start stop"""
    start, stop = integer_of(args[2]), integer_of(args[3])
    value = client.db.get_as(args[1], list) or []
    start = max(start + len(value), 0) if start < 0 else start
    stop = stop + len(value) if stop < 0 else stop
    return Array(bulks(value[start : stop + 1] if stop >= 0 else []))
