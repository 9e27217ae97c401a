"""COPY MOVE SWAPDB, OBJECT ENCODING and MEMORY USAGE: keys between databases, and facts about keys."""

from __future__ import annotations

import copy as copying
import sys

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import database_of, integer_of, syntax_error
from spark_streams.engine.commands.values.keys import encoding_of
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import NIL, OK, CommandError, Reply, bulk, integer
from spark_streams.engine.store.keyspace import Database, Value
from spark_streams.engine.store.memory import size_of
from spark_streams.engine.store.stream import Stream


def copy_of(value: Value) -> Value:
    """Return a copy that shares only the settings with the value."""
    if isinstance(value, Stream):
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
