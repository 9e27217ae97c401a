"""HSET HSETNX HGET HMGET HGETALL HSCAN HKEYS HVALS HDEL HLEN HEXISTS HSTRLEN, for ledgers and leases."""

from __future__ import annotations

import itertools

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import cursor_of, integer_of, pattern_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import NIL, Array, CommandError, Map, Reply, bulk, bulks, integer


def _hash(client: Client, key: bytes) -> dict[bytes, bytes]:
    return client.db.get_as(key, dict) or {}


def _set(client: Client, args: list[bytes]) -> int:
    if len(args) % 2:
        raise CommandError(f"ERR wrong number of arguments for '{args[0].decode().lower()}' command")
    value = _hash(client, args[1])
    before = len(value)
    value.update(zip(args[2::2], args[3::2], strict=True))
    client.db.set(args[1], value, keep_ttl=True, changes=len(args) // 2 - 1)
    return len(value) - before


@command("hset", -4, "write denyoom fast", (1, 1, 1))
def hset(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HSET key field value …"""
    return integer(_set(client, args))


@command("hsetnx", 4, "write denyoom fast", (1, 1, 1))
def hsetnx(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HSETNX key field value"""
    if args[2] in _hash(client, args[1]):
        return integer(0)
    return integer(_set(client, args))


@command("hget", 3, "readonly fast", (1, 1, 1))
def hget(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HGET key field"""
    value = _hash(client, args[1]).get(args[2])
    return NIL if value is None else bulk(value)


@command("hmget", -3, "readonly fast", (1, 1, 1))
def hmget(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HMGET key field …"""
    fields = _hash(client, args[1])
    values = [fields.get(name) for name in args[2:]]
    return Array([NIL if value is None else bulk(value) for value in values])


@command("hgetall", 2, "readonly", (1, 1, 1))
def hgetall(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HGETALL key"""
    return Map([(bulk(name), bulk(value)) for name, value in _hash(client, args[1]).items()])


@command("hscan", -3, "readonly", (1, 1, 1))
def hscan(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HSCAN key cursor [MATCH pattern] [COUNT n] [NOVALUES]: the cursor counts fields in order of insertion."""
    cursor, count, pattern, with_values = cursor_of(args[2]), 10, b"*", True
    options = iter(args[3:])
    for option in options:
        match option.lower():
            case b"novalues":
                with_values = False
                continue
            case b"match" | b"count":
                value = next(options, None)
            case _:
                raise syntax_error()
        if value is None:
            raise syntax_error()
        if option.lower() == b"match":
            pattern = value
            continue
        count = integer_of(value)
        if count < 1:
            raise syntax_error()
    fields = _hash(client, args[1])
    matches = pattern_of(pattern)
    cursor = min(cursor, len(fields))
    page = list(itertools.islice(fields.items(), cursor, min(cursor + count, len(fields))))
    following = cursor + count if cursor + count < len(fields) else 0
    shown = [part for name, value in page if matches(name) for part in ((name, value) if with_values else (name,))]
    return Array([bulk(b"%d" % following), Array(bulks(shown))])


@command("hkeys", 2, "readonly", (1, 1, 1))
def hkeys(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HKEYS key"""
    return Array(bulks(_hash(client, args[1])))


@command("hvals", 2, "readonly", (1, 1, 1))
def hvals(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HVALS key"""
    return Array(bulks(_hash(client, args[1]).values()))


@command("hdel", -3, "write fast", (1, 1, 1))
def hdel(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HDEL key field …"""
    value = _hash(client, args[1])
    removed = sum(value.pop(name, None) is not None for name in args[2:])
    if removed:
        client.db.remove_if_empty(args[1], removed)
    return integer(removed)


@command("hlen", 2, "readonly fast", (1, 1, 1))
def hlen(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HLEN key"""
    return integer(len(_hash(client, args[1])))


@command("hstrlen", 3, "readonly fast", (1, 1, 1))
def hstrlen(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HSTRLEN key field"""
    return integer(len(_hash(client, args[1]).get(args[2], b"")))


@command("hexists", 3, "readonly fast", (1, 1, 1))
def hexists(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HEXISTS key field"""
    return integer(args[2] in _hash(client, args[1]))
