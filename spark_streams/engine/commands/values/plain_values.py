"""Commands of strings, hashes, sets and lists: what stream clients use for cursors, counters, ledgers and leases.

Clients that wait for a list and clients that wait for a stream share the same queues.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from spark_streams.engine.client import Client, Waiter
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import NOT_INTEGER, cursor_of, integer_of, pattern_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import (
    NIL,
    NIL_ARRAY,
    OK,
    Array,
    CommandError,
    Map,
    Reply,
    SetOf,
    bulk,
    bulks,
    integer,
)
from spark_streams.engine.store.keyspace import Database


@command("set", -3, "write denyoom", (1, 1, 1))
def set_(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]"""
    db, key = client.db, args[1]
    condition = expiry = b""
    get = False
    due: int | None = None
    index = 3
    while index < len(args):
        option = args[index].lower()
        if option in (b"nx", b"xx") and condition in (b"", option):
            condition = option
        elif option == b"get":
            get = True
        elif option == b"keepttl" and not expiry:
            expiry = option
        elif option in (b"ex", b"px", b"exat", b"pxat") and not expiry and index + 1 < len(args):
            expiry = option
            amount = integer_of(args[index + 1])
            due = amount * (1000 if option in (b"ex", b"exat") else 1)
            if amount <= 0 or due >= 1 << 63:
                raise CommandError("ERR invalid expire time in 'set' command")
            if option in (b"ex", b"px"):
                due += engine.now
            index += 1
        else:
            raise syntax_error()
        index += 1
    old = db.get_as(key, bytes) if get else None
    before: Reply = bulk(old) if old is not None else NIL
    present = db.get(key) is not None
    if (condition == b"nx" and present) or (condition == b"xx" and not present):
        return before if get else NIL
    db.set(key, args[2], keep_ttl=expiry == b"keepttl")
    if due is not None:
        db.expires[key] = due
    return before if get else OK


@command("get", 2, "readonly fast", (1, 1, 1))
def get(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """GET key"""
    value = client.db.get_as(args[1], bytes)
    return NIL if value is None else bulk(value)


def _add(client: Client, key: bytes, amount: int) -> Reply:
    value = client.db.get_as(key, bytes)
    total = (integer_of(value, NOT_INTEGER) if value is not None else 0) + amount
    if not -(1 << 63) <= total < 1 << 63:
        raise CommandError("ERR increment or decrement would overflow")
    client.db.set(key, b"%d" % total, keep_ttl=True)
    return integer(total)


@command("incr", 2, "write denyoom fast", (1, 1, 1))
def incr(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """INCR key"""
    return _add(client, args[1], 1)


@command("incrby", 3, "write denyoom fast", (1, 1, 1))
def incrby(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """INCRBY key increment"""
    return _add(client, args[1], integer_of(args[2]))


@command("mget", -2, "readonly fast", (1, -1, 1))
def mget(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MGET key …"""
    values = [client.db.get(key) for key in args[1:]]
    return Array([bulk(value) if isinstance(value, bytes) else NIL for value in values])


@command("mset", -3, "write denyoom", (1, -1, 2))
def mset(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MSET key value …"""
    if not len(args) % 2:
        raise CommandError("ERR wrong number of arguments for 'mset' command")
    for key, value in zip(args[1::2], args[2::2], strict=True):
        client.db.set(key, value)
    return OK


@command("append", 3, "write denyoom fast", (1, 1, 1))
def append(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """APPEND key value"""
    value = (client.db.get_as(args[1], bytes) or b"") + args[2]
    if len(value) > engine.config.number("proto-max-bulk-len"):
        raise CommandError("ERR string exceeds maximum allowed size (proto-max-bulk-len)")
    client.db.set(args[1], value, keep_ttl=True)
    return integer(len(value))


@command("decrby", 3, "write denyoom fast", (1, 1, 1))
def decrby(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DECRBY key decrement"""
    amount = integer_of(args[2])
    if amount == -(1 << 63):
        raise CommandError("ERR decrement would overflow")
    return _add(client, args[1], -amount)


@command("getrange", 4, "readonly", (1, 1, 1))
def getrange(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """GETRANGE key start end"""
    start, end = integer_of(args[2]), integer_of(args[3])
    value = client.db.get_as(args[1], bytes) or b""
    if start < 0 and end < 0 and start > end:
        return bulk(b"")
    start = max(start + len(value), 0) if start < 0 else start
    end = max(end + len(value), 0) if end < 0 else end
    return bulk(value[start : end + 1])


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


def _members(found: Iterable[bytes]) -> list[Reply]:
    """Return the members as replies, in the order of the set."""
    return bulks(found)


def _set_at(client: Client, key: bytes) -> set[bytes]:
    return client.db.get_as(key, set) or set()


@command("sadd", -3, "write denyoom fast", (1, 1, 1))
def sadd(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SADD key member …"""
    value = _set_at(client, args[1])
    before = len(value)
    value.update(args[2:])
    added = len(value) - before
    if added:
        client.db.set(args[1], value, keep_ttl=True, changes=added)
    return integer(added)


@command("srem", -3, "write fast", (1, 1, 1))
def srem(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SREM key member …"""
    value = _set_at(client, args[1])
    before = len(value)
    value.difference_update(args[2:])
    removed = before - len(value)
    if removed:
        client.db.remove_if_empty(args[1], removed)
    return integer(removed)


@command("sismember", 3, "readonly fast", (1, 1, 1))
def sismember(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SISMEMBER key member"""
    return integer(args[2] in _set_at(client, args[1]))


@command("smembers", 2, "readonly", (1, 1, 1))
def smembers(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SMEMBERS key"""
    return SetOf(_members(_set_at(client, args[1])))


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
