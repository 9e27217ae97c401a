"""LPUSH LPOP BLPOP LRANGE: the list commands that the tests of stream clients and servers use.

Clients that wait for a list and clients that wait for a stream share the same queues.
"""

from __future__ import annotations

import math

from spark_streams.engine.client import Client, Waiter
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import integer_of
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import NIL, NIL_ARRAY, Array, CommandError, Reply, bulk, bulks, integer
from spark_streams.engine.store.keyspace import Database


@command("lpush", -3, "write denyoom fast", (1, 1, 1))
def lpush(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LPUSH key element …"""
    value = client.db.get_as(args[1], list) or []
    value[:0] = args[:1:-1]
    client.db.set(args[1], value, keep_ttl=True, changes=len(args) - 2)
    return integer(len(value))


def _take(db: Database, key: bytes, value: list[bytes], count: int) -> list[bytes]:
    taken = value[:count]
    del value[:count]
    if taken:
        db.remove_if_empty(key, len(taken))
    return taken


@command("lpop", -2, "write fast", (1, 1, 1))
def lpop(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LPOP key [count]"""
    count: int | None = None
    if len(args) > 3:
        raise CommandError("ERR wrong number of arguments for 'lpop' command")
    if len(args) == 3:
        count = integer_of(args[2], "ERR value is out of range, must be positive")
        if count < 0:
            raise CommandError("ERR value is out of range, must be positive")
    value = client.db.get_as(args[1], list)
    if value is None:
        return NIL if count is None else NIL_ARRAY
    taken = _take(client.db, args[1], value, 1 if count is None else count)
    return bulk(taken[0]) if count is None else Array(bulks(taken))


def seconds_of(text: bytes) -> int:
    """Return a timeout in seconds, with or without a fraction, as milliseconds. Raises CommandError."""
    try:
        seconds = float(text) if text.strip() == text and b"_" not in text else math.nan
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise CommandError("ERR timeout is not a float or out of range")
    if seconds >= (1 << 63) / 1000:  # Redis' counter overflows
        raise CommandError("ERR timeout is out of range")
    if seconds < 0:
        raise CommandError("ERR timeout is negative")
    return math.ceil(seconds * 1000)


@command("blpop", -3, "write blocking effect", (1, -2, 1))
def blpop(engine: Engine, client: Client, args: list[bytes]) -> Reply | None:
    """BLPOP key … seconds"""
    db, keys, wait = client.db, args[1:-1], seconds_of(args[-1])

    def attempt(first: bool = False) -> Reply | None:
        for key in keys:
            value = db.get_as(key, list) if first else db.get(key)
            if isinstance(value, list):
                taken = _take(db, key, value, 1)
                if engine.journal is not None:
                    engine.journal.write(db, b"LPOP", key)
                return Array([bulk(key), bulk(taken[0])])
        return None

    reply = attempt(first=True)
    if reply is not None:
        return reply
    if engine.in_transaction:
        return NIL_ARRAY
    engine.block(Waiter(client, db, keys, engine.now + wait if wait else None, attempt, NIL_ARRAY))
    return None


@command("lrange", 4, "readonly", (1, 1, 1))
def lrange(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LRANGE key start stop"""
    start, stop = integer_of(args[2]), integer_of(args[3])
    value = client.db.get_as(args[1], list) or []
    start = max(start + len(value), 0) if start < 0 else start
    stop = stop + len(value) if stop < 0 else stop
    return Array(bulks(value[start : stop + 1] if stop >= 0 else []))
