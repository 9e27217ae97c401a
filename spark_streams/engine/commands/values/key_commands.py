"""Commands on keys of any type: EXISTS DEL TYPE KEYS SCAN RENAME EXPIRE… TTL… FLUSH… DBSIZE; COPY MOVE SWAPDB, OBJECT
ENCODING and MEMORY USAGE: keys between databases, and facts about keys.
"""

from __future__ import annotations

import copy as copying
import re
import sys

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import cursor_of, database_of, integer_of, pattern_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import NIL, OK, Array, CommandError, Reply, bulk, bulks, integer, simple
from spark_streams.engine.store.keyspace import TYPE_NAMES, Database, Value, existing, size_of
from spark_streams.engine.store.stream import StoredStream


@command("exists", -2, "readonly fast", (1, -1, 1))
def exists(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """EXISTS key …"""
    return integer(sum(client.db.get(key) is not None for key in args[1:]))


def _delete(client: Client, args: list[bytes]) -> Reply:
    removed = 0
    for key in args[1:]:
        if client.db.get(key) is not None:
            client.db.remove(key)
            removed += 1
    return integer(removed)


@command("del", -2, "write", (1, -1, 1))
def del_(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DEL key …"""
    return _delete(client, args)


@command("unlink", -2, "write fast", (1, -1, 1))
def unlink(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """UNLINK key …"""
    return _delete(client, args)


@command("type", 2, "readonly fast", (1, 1, 1))
def type_(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """TYPE key"""
    value = client.db.get(args[1])
    return simple("none" if value is None else TYPE_NAMES[type(value)])


@command("keys", 2, "readonly")
def keys(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """KEYS pattern"""
    matches = pattern_of(args[1])
    return Array(bulks(key for key in list(client.db.keys()) if matches(key)))


@command("scan", -2, "readonly")
def scan(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]: the cursor counts keys in order of insertion."""
    cursor, count, pattern, kind = cursor_of(args[1]), 10, b"*", b""
    if len(args) % 2:
        raise syntax_error()
    for option, value in zip(args[2::2], args[3::2], strict=True):
        match option.lower():
            case b"match":
                pattern = value
            case b"count":
                count = integer_of(value)
                if count < 1:
                    raise syntax_error()
            case b"type":
                kind = value.lower()
            case _:
                raise syntax_error()
    names = list(client.db.keys())
    page = names[cursor : cursor + count]
    matches = pattern_of(pattern)
    shown = [
        key for key in page if matches(key) and (not kind or TYPE_NAMES[type(client.db.values[key])].encode() == kind)
    ]
    following = cursor + count if cursor + count < len(names) else 0
    return Array([bulk(b"%d" % following), Array(bulks(shown))])


@command("rename", 3, "write", (1, 2, 1))
def rename(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """RENAME key new"""
    db, old, new = client.db, args[1], args[2]
    value = existing(db.get(old))
    if old != new:
        due = db.expires.get(old)
        db.remove(old, changes=0)
        db.remove(new, changes=0)
        db.set(new, value)
        if due is not None:
            db.expires[new] = due
    return OK


def _expire(engine: Engine, client: Client, args: list[bytes], unit: int, absolute: bool) -> Reply:
    db, key = client.db, args[1]
    name = args[0].decode().lower()
    amount = integer_of(args[2])
    flags = {option.lower() for option in args[3:]}
    for option in args[3:]:
        if option.lower() not in (b"nx", b"xx", b"gt", b"lt"):
            raise CommandError(b"ERR Unsupported option %b" % option)
    if b"nx" in flags and len(flags) > 1:
        raise CommandError("ERR NX and XX, GT or LT options at the same time are not compatible")
    if {b"gt", b"lt"} <= flags:
        raise CommandError("ERR GT and LT options at the same time are not compatible")
    due = amount * unit + (0 if absolute else engine.now)
    if not -(1 << 63) <= due < 1 << 63:
        raise CommandError(f"ERR invalid expire time in '{name}' command")
    if db.get(key) is None:
        return integer(0)
    current = db.expires.get(key)
    if (b"nx" in flags and current is not None) or (b"xx" in flags and current is None):
        return integer(0)
    if b"gt" in flags and (current is None or due <= current):
        return integer(0)
    if b"lt" in flags and current is not None and due >= current:
        return integer(0)
    if due <= engine.now and not engine.loading:
        db.remove(key)
    else:
        db.expires[key] = due
        db.touch(key)
    return integer(1)


@command("expire", -3, "write fast", (1, 1, 1))
def expire(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """EXPIRE key seconds [NX|XX|GT|LT]"""
    return _expire(engine, client, args, 1000, absolute=False)


@command("pexpire", -3, "write fast", (1, 1, 1))
def pexpire(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """PEXPIRE key milliseconds [NX|XX|GT|LT]"""
    return _expire(engine, client, args, 1, absolute=False)


@command("expireat", -3, "write fast", (1, 1, 1))
def expireat(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """EXPIREAT key unix-seconds [NX|XX|GT|LT]"""
    return _expire(engine, client, args, 1000, absolute=True)


@command("pexpireat", -3, "write fast", (1, 1, 1))
def pexpireat(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """PEXPIREAT key unix-milliseconds [NX|XX|GT|LT]"""
    return _expire(engine, client, args, 1, absolute=True)


def _time_to_live(engine: Engine, client: Client, key: bytes) -> int:
    if client.db.get(key) is None:
        return -2
    due = client.db.expires.get(key)
    return -1 if due is None else max(due - engine.now, 0)


@command("ttl", 2, "readonly fast", (1, 1, 1))
def ttl(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """TTL key, in seconds"""
    remaining_ms = _time_to_live(engine, client, args[1])
    return integer((remaining_ms + 500) // 1000 if remaining_ms >= 0 else remaining_ms)


@command("pttl", 2, "readonly fast", (1, 1, 1))
def pttl(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """PTTL key, in milliseconds"""
    return integer(_time_to_live(engine, client, args[1]))


@command("expiretime", 2, "readonly fast", (1, 1, 1))
def expiretime(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """EXPIRETIME key, in Unix seconds"""
    remaining_ms = _time_to_live(engine, client, args[1])
    return integer((client.db.expires[args[1]] + 500) // 1000 if remaining_ms >= 0 else remaining_ms)


@command("pexpiretime", 2, "readonly fast", (1, 1, 1))
def pexpiretime(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """PEXPIRETIME key, in Unix milliseconds"""
    remaining_ms = _time_to_live(engine, client, args[1])
    return integer(client.db.expires[args[1]] if remaining_ms >= 0 else remaining_ms)


@command("persist", 2, "write fast", (1, 1, 1))
def persist(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """PERSIST key"""
    if client.db.get(args[1]) is None or client.db.expires.pop(args[1], None) is None:
        return integer(0)
    client.db.touch(args[1])
    return integer(1)


def _check_flush(args: list[bytes]) -> None:
    if len(args) > 2 or (len(args) == 2 and args[1].lower() not in (b"sync", b"async")):
        raise syntax_error()


@command("flushall", -1, "write")
def flushall(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """FLUSHALL [SYNC|ASYNC]"""
    _check_flush(args)
    for db in engine.databases:
        db.clear()
    return OK


@command("flushdb", -1, "write")
def flushdb(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """FLUSHDB [SYNC|ASYNC]"""
    _check_flush(args)
    client.db.clear()
    return OK


@command("dbsize", 1, "readonly fast")
def dbsize(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DBSIZE"""
    return integer(len(list(client.db.keys())))


def encoding_of(value: Value) -> bytes:
    """Return the encoding that Redis would use."""
    if isinstance(value, StoredStream):
        return b"stream"
    if isinstance(value, bytes):
        if re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", value) and -(1 << 63) <= int(value) < 1 << 63:
            return b"int"
        return b"embstr" if len(value) <= 44 else b"raw"
    if isinstance(value, set):
        numbers = all(re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", member) for member in value)
        return b"intset" if numbers and len(value) <= 512 else b"hashtable"
    if isinstance(value, dict):
        small = len(value) <= 128 and all(len(k) <= 64 and len(v) <= 64 for k, v in value.items())
        return b"listpack" if small else b"hashtable"
    return b"quicklist"


def copy_of(value: Value) -> Value:
    """Return a copy that shares only the settings with the value."""
    if isinstance(value, StoredStream):
        return copying.deepcopy(value, {id(value.limits): value.limits})
    return copying.copy(value)


@command("copy", -3, "write denyoom", (1, 2, 1))
def copy(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """COPY source destination [DB number] [REPLACE]: a stream with its groups and what is pending."""
    source, target, replace = client.db, client.db, False
    index = 3
    while index < len(args):
        option = args[index].lower()
        if option == b"replace":
            replace = True
        elif option == b"db" and index + 1 < len(args):
            index += 1
            target = database_of(engine.databases, args[index])
        else:
            raise syntax_error()
        index += 1
    if source is target and args[1] == args[2]:
        raise CommandError("ERR source and destination objects are the same")
    value = source.get(args[1])
    if value is None or (target.get(args[2]) is not None and not replace):
        return integer(0)
    if engine.memory.limit:
        engine.memory.grow(size_of(value))  # sizes of large values take time
    target.remove(args[2], changes=0)
    _put(target, args[2], copy_of(value), source.expires.get(args[1]))
    return integer(1)


@command("move", 3, "write fast", (1, 1, 1))
def move(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MOVE key database: the value itself, with its time of expiry."""
    source, target, key = client.db, database_of(engine.databases, args[2]), args[1]
    if source is target:
        raise CommandError("ERR source and destination objects are the same")
    value = source.get(key)
    if value is None or target.get(key) is not None:
        return integer(0)
    due = source.expires.get(key)
    source.remove(key, changes=0)
    _put(target, key, value, due)
    return integer(1)


def _put(db: Database, key: bytes, value: Value, due: int | None) -> None:
    db.set(key, value)
    if due is not None:
        db.expires[key] = due


@command("swapdb", 3, "write fast")
def swapdb(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SWAPDB one other: the clients of one database see the keys of the other."""
    first = database_of(engine.databases, args[1], "ERR invalid first DB index")
    other = database_of(engine.databases, args[2], "ERR invalid second DB index")
    if first is not other:
        first.values, other.values = other.values, first.values
        first.expires, other.expires = other.expires, first.expires
        for db in (first, other):
            for key in {*db.watched, *db.waiting}:
                if key in first.values or key in other.values:
                    db.touch(key, 0)
        client.db.changes += 1
    return OK


@command("object|encoding", 3, "readonly", (2, 2, 1))
def object_encoding(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """OBJECT ENCODING key: the name that Redis would give for such a value."""
    value = client.db.get(args[2])
    return NIL if value is None else bulk(encoding_of(value))


@command("memory|usage", -3, "readonly", (2, 2, 1))
def memory_usage(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MEMORY USAGE key [SAMPLES n]: an estimate of this process' own bytes."""
    if len(args) > 3:
        if len(args) != 5 or args[3].lower() != b"samples":
            raise syntax_error()
        if integer_of(args[4]) < 0:
            raise syntax_error()
    value = client.db.get(args[2])
    return NIL if value is None else integer(sys.getsizeof(args[2]) + size_of(value))
