"""SET GET GETDEL INCR… MGET MSET STRLEN: the string commands that stream clients keep cursors and counters with."""

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
    at = 3
    while at < len(args):
        option = args[at].lower()
        if option in (b"nx", b"xx") and condition in (b"", option):
            condition = option
        elif option == b"get":
            get = True
        elif option == b"keepttl" and not expiry:
            expiry = option
        elif option in (b"ex", b"px", b"exat", b"pxat") and not expiry and at + 1 < len(args):
            expiry = option
            amount = integer_of(args[at + 1])
            due = amount * (1000 if option in (b"ex", b"exat") else 1)
            if amount <= 0 or due >= 1 << 63:
                raise CommandError("ERR invalid expire time in 'set' command")
            if option in (b"ex", b"px"):
                due += engine.now
            at += 1
        else:
            raise syntax_error()
        at += 1
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


@command("getdel", 2, "write fast", (1, 1, 1))
def getdel(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """GETDEL key"""
    value = client.db.get_as(args[1], bytes)
    if value is None:
        return NIL
    client.db.remove(args[1])
    return bulk(value)


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


@command("decr", 2, "write denyoom fast", (1, 1, 1))
def decr(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DECR key"""
    return _add(client, args[1], -1)


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


@command("strlen", 2, "readonly fast", (1, 1, 1))
def strlen(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """STRLEN key"""
    return integer(len(client.db.get_as(args[1], bytes) or b""))


@command("setnx", 3, "write denyoom fast", (1, 1, 1))
def setnx(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SETNX key value"""
    if client.db.get(args[1]) is not None:
        return integer(0)
    client.db.set(args[1], args[2])
    return integer(1)


def _set_for(engine: Engine, client: Client, args: list[bytes], unit: int) -> Reply:
    due = _due(engine, args[2], unit, absolute=False, name=args[0])
    client.db.set(args[1], args[3])
    client.db.expires[args[1]] = due
    return OK


def _due(engine: Engine, text: bytes, unit: int, absolute: bool, name: bytes) -> int:
    """When a time given in an argument is up, in Unix milliseconds. Raises CommandError."""
    amount = integer_of(text)
    due = amount * unit + (0 if absolute else engine.now)
    if amount <= 0 or due >= 1 << 63:
        raise CommandError(b"ERR invalid expire time in '%b' command" % name.lower())
    return due


@command("setex", 4, "write denyoom", (1, 1, 1))
def setex(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SETEX key seconds value"""
    return _set_for(engine, client, args, 1000)


@command("psetex", 4, "write denyoom", (1, 1, 1))
def psetex(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """PSETEX key milliseconds value"""
    return _set_for(engine, client, args, 1)


@command("getset", 3, "write denyoom fast", (1, 1, 1))
def getset(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """GETSET key value"""
    old = client.db.get_as(args[1], bytes)
    client.db.set(args[1], args[2])
    return NIL if old is None else bulk(old)


_UNITS = {b"ex": 1000, b"exat": 1000, b"px": 1, b"pxat": 1}


@command("getex", -2, "write fast", (1, 1, 1))
def getex(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]"""
    option = args[2].lower() if len(args) > 2 else b""
    wanted = 2 if not option else 3 if option == b"persist" else 4 if option in _UNITS else 0
    if len(args) != wanted:
        raise syntax_error()
    db, key = client.db, args[1]
    value = db.get_as(key, bytes)
    if value is None:
        return NIL
    if option == b"persist":
        if db.expires.pop(key, None) is not None:
            db.touch(key)
    elif option:
        due = _due(engine, args[3], _UNITS[option], absolute=option.endswith(b"at"), name=args[0])
        if due <= engine.now:
            db.remove(key)
        else:
            db.expires[key] = due
            db.touch(key)
    return bulk(value)


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


@command("msetnx", -3, "write denyoom", (1, -1, 2))
def msetnx(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MSETNX key value …: all or none"""
    if not len(args) % 2:
        raise CommandError("ERR wrong number of arguments for 'msetnx' command")
    if any(client.db.get(key) is not None for key in args[1::2]):
        return integer(0)
    for key, value in zip(args[1::2], args[2::2], strict=True):
        client.db.set(key, value)
    return integer(1)
