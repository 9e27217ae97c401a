"""SET GET INCR INCRBY DECRBY MGET MSET APPEND GETRANGE, with which stream clients store cursors and counters."""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import NOT_INTEGER, integer_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import NIL, OK, Array, CommandError, Reply, bulk, integer


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
