"""LPUSH RPUSH LPOP RPOP LLEN LINDEX LRANGE BLPOP BRPOP: lists, as far as clients of streams use them side by side.

Who blocks for a list stands in the same queues as who blocks for a stream, and is served by the same rule.
"""

from __future__ import annotations

import math

from spark_streams.engine.client import Client, Waiter
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import integer_of
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import NIL, NIL_ARRAY, Array, CommandError, Reply, bulk, bulks, integer
from spark_streams.engine.store.keyspace import Database


def _push(client: Client, args: list[bytes], left: bool, only_if_there: bool = False) -> Reply:
    value = client.db.get_as(args[1], list)
    if value is None:
        if only_if_there:
            return integer(0)
        value = []
    if left:
        value[:0] = args[:1:-1]
    else:
        value += args[2:]
    client.db.set(args[1], value, keep_ttl=True, changes=len(args) - 2)
    return integer(len(value))


@command("lpush", -3, "write denyoom fast", (1, 1, 1))
def lpush(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LPUSH key element …"""
    return _push(client, args, left=True)


@command("rpush", -3, "write denyoom fast", (1, 1, 1))
def rpush(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """RPUSH key element …"""
    return _push(client, args, left=False)


@command("lpushx", -3, "write denyoom fast", (1, 1, 1))
def lpushx(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LPUSHX key element …"""
    return _push(client, args, left=True, only_if_there=True)


@command("rpushx", -3, "write denyoom fast", (1, 1, 1))
def rpushx(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """RPUSHX key element …"""
    return _push(client, args, left=False, only_if_there=True)


def _take(db: Database, key: bytes, value: list[bytes], count: int, left: bool) -> list[bytes]:
    if left:
        taken = value[:count]
        del value[:count]
    else:
        taken = value[: -count - 1 : -1] if count else []
        del value[len(value) - len(taken) :]
    if taken:
        db.shrunk(key, len(taken))
    return taken


def _pop(client: Client, args: list[bytes], left: bool) -> Reply:
    count: int | None = None
    if len(args) > 3:
        raise CommandError(b"ERR wrong number of arguments for '%b' command" % args[0].lower())
    if len(args) == 3:
        count = integer_of(args[2], "ERR value is out of range, must be positive")
        if count < 0:
            raise CommandError("ERR value is out of range, must be positive")
    value = client.db.get_as(args[1], list)
    if value is None:
        return NIL if count is None else NIL_ARRAY
    taken = _take(client.db, args[1], value, 1 if count is None else count, left)
    return bulk(taken[0]) if count is None else Array(bulks(taken))


@command("lpop", -2, "write fast", (1, 1, 1))
def lpop(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LPOP key [count]"""
    return _pop(client, args, left=True)


@command("rpop", -2, "write fast", (1, 1, 1))
def rpop(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """RPOP key [count]"""
    return _pop(client, args, left=False)


def seconds_of(text: bytes) -> int:
    """A time-out in seconds, with or without a fraction, as milliseconds. Raises CommandError."""
    try:
        seconds = float(text) if text.strip() == text and b"_" not in text else math.nan
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise CommandError("ERR timeout is not a float or out of range")
    if not 0 <= seconds < (1 << 63) / 1000:  # what is too long for Redis' counter wraps round
        raise CommandError("ERR timeout is negative")
    return math.ceil(seconds * 1000)


def _blocking_pop(engine: Engine, client: Client, args: list[bytes], left: bool) -> Reply | None:
    db, keys, wait = client.db, args[1:-1], seconds_of(args[-1])

    def attempt(first: bool = False) -> Reply | None:
        for key in keys:
            value = db.get_as(key, list) if first else db.get(key)
            if isinstance(value, list):
                taken = _take(db, key, value, 1, left)
                if engine.journal is not None:
                    engine.journal.write(db, b"LPOP" if left else b"RPOP", key)
                return Array([bulk(key), bulk(taken[0])])
        return None

    reply = attempt(first=True)
    if reply is not None:
        return reply
    if engine.in_transaction:
        return NIL_ARRAY
    engine.block(Waiter(client, db, keys, engine.now + wait if wait else None, attempt, NIL_ARRAY))
    return None


@command("blpop", -3, "write blocking effect", (1, -2, 1))
def blpop(engine: Engine, client: Client, args: list[bytes]) -> Reply | None:
    """BLPOP key … seconds"""
    return _blocking_pop(engine, client, args, left=True)


@command("brpop", -3, "write blocking effect", (1, -2, 1))
def brpop(engine: Engine, client: Client, args: list[bytes]) -> Reply | None:
    """BRPOP key … seconds"""
    return _blocking_pop(engine, client, args, left=False)


@command("llen", 2, "readonly fast", (1, 1, 1))
def llen(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LLEN key"""
    return integer(len(client.db.get_as(args[1], list) or []))


@command("lindex", 3, "readonly", (1, 1, 1))
def lindex(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LINDEX key index"""
    value = client.db.get_as(args[1], list) or []
    at = integer_of(args[2])
    return bulk(value[at]) if -len(value) <= at < len(value) else NIL


@command("lrange", 4, "readonly", (1, 1, 1))
def lrange(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """LRANGE key start stop"""
    start, stop = integer_of(args[2]), integer_of(args[3])
    value = client.db.get_as(args[1], list) or []
    start = max(start + len(value), 0) if start < 0 else start
    stop = stop + len(value) if stop < 0 else stop
    return Array(bulks(value[start : stop + 1] if stop >= 0 else []))
