"""COPY SWAPDB TOUCH RANDOMKEY, OBJECT and MEMORY: keys between databases, and what is known about them."""

from __future__ import annotations

import copy as copying
import sys

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import help_lines, integer_of, syntax_error
from spark_streams.engine.commands.keys import encoding_of
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import NIL, OK, Array, CommandError, Map, Reply, Verbatim, bulk, integer, simple
from spark_streams.engine.store.keyspace import Database, Value
from spark_streams.engine.store.memory import peak, resident, size_of
from spark_streams.engine.store.stream import Stream


def _database(engine: Engine, text: bytes, problem: str = "ERR value is not an integer or out of range") -> Database:
    number = integer_of(text, problem)
    if not 0 <= number < len(engine.databases):
        raise CommandError("ERR DB index is out of range")
    return engine.databases[number]


def copy_of(value: Value) -> Value:
    """A value that shares nothing with this one but the settings."""
    if isinstance(value, Stream):
        return copying.deepcopy(value, {id(value.limits): value.limits})
    return copying.copy(value)


@command("copy", -3, "write denyoom", (1, 2, 1))
def copy(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """COPY source destination [DB number] [REPLACE]: a stream with its groups and what is pending."""
    source, target, replace = client.db, client.db, False
    at = 3
    while at < len(args):
        option = args[at].lower()
        if option == b"replace":
            replace = True
        elif option == b"db" and at + 1 < len(args):
            at += 1
            target = _database(engine, args[at])
        else:
            raise syntax_error()
        at += 1
    if source is target and args[1] == args[2]:
        raise CommandError("ERR source and destination objects are the same")
    value = source.get(args[1])
    if value is None or (target.get(args[2]) is not None and not replace):
        return integer(0)
    due = source.expires.get(args[1])
    target.remove(args[2], changes=0)
    target.set(args[2], copy_of(value))
    if due is not None:
        target.expires[args[2]] = due
    return integer(1)


@command("swapdb", 3, "write fast")
def swapdb(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SWAPDB one other: whoever is in one sees the keys of the other."""
    first = _database(engine, args[1], "ERR invalid first DB index")
    other = _database(engine, args[2], "ERR invalid second DB index")
    if first is not other:
        first.values, other.values = other.values, first.values
        first.expires, other.expires = other.expires, first.expires
        for db in (first, other):
            for key in {*db.watched, *db.waiting}:
                if key in first.values or key in other.values:
                    db.touch(key, 0)
        client.db.changes += 1
    return OK


@command("touch", -2, "readonly fast", (1, -1, 1))
def touch(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """TOUCH key …: how many there are; access times are not kept."""
    return integer(sum(client.db.get(key) is not None for key in args[1:]))


@command("randomkey", 1, "readonly")
def randomkey(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """RANDOMKEY"""
    import random  # not at the start, for which people wait

    names = list(client.db.keys())
    return bulk(random.choice(names)) if names else NIL


@command("object|encoding", 3, "readonly", (2, 2, 1))
def object_encoding(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """OBJECT ENCODING key: the name that Redis would give for such a value."""
    value = client.db.get(args[2])
    return NIL if value is None else bulk(encoding_of(value))


@command("object|refcount", 3, "readonly", (2, 2, 1))
def object_refcount(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """OBJECT REFCOUNT key"""
    return NIL if client.db.get(args[2]) is None else integer(1)


@command("object|idletime", 3, "readonly", (2, 2, 1))
def object_idletime(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """OBJECT IDLETIME key: access times are not kept, so there is no answer."""
    if client.db.get(args[2]) is None:
        return NIL
    raise CommandError("ERR this engine keeps no access times: OBJECT IDLETIME has no answer")


@command("object|freq", 3, "readonly", (2, 2, 1))
def object_freq(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """OBJECT FREQ key: only with an LFU policy, which this engine does not have."""
    if client.db.get(args[2]) is None:
        return NIL
    raise CommandError(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
        "between policies at runtime LRU and LFU data will take some time to adjust."
    )


@command("object|help", 2, "loading")
def object_help(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """OBJECT HELP"""
    lines = "ENCODING <key>\n    The encoding that Redis would use.\nREFCOUNT <key>\n    Always 1."
    return Array([simple(line) for line in help_lines("OBJECT", lines)])


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


@command("memory|doctor", 2)
def memory_doctor(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MEMORY DOCTOR: the counted bytes beside those of the process, in a sentence."""
    used, rss = engine.memory.used(), resident()
    text = f"{used} bytes are used besides the interpreter, {rss} are resident. "
    if rss > 2 * (engine.memory.base + used):
        text += "What was freed has not gone back to the system yet: MEMORY PURGE may help."
    else:
        text += "That is as it should be."
    return Verbatim(text.encode())


@command("memory|stats", 2)
def memory_stats(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MEMORY STATS"""
    gauge = engine.memory
    used, keys = gauge.used(), sum(len(db.values) for db in engine.databases)
    dataset = gauge.dataset()
    fields = {
        "peak.allocated": peak(),
        "total.allocated": used,
        "startup.allocated": 0,
        "clients.normal": gauge.buffers(),
        "keys.count": keys,
        "keys.bytes-per-key": dataset // keys if keys else 0,
        "dataset.bytes": dataset,
        "process.resident": resident(),
    }
    return Map([(bulk(name.encode()), integer(value)) for name, value in fields.items()])


@command("memory|purge", 2)
def memory_purge(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MEMORY PURGE: give free memory back if the C library can. Garbage is collected while the engine is idle."""
    import ctypes  # not at the start, for which people wait

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return OK
