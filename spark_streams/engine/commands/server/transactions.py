"""MULTI EXEC DISCARD WATCH UNWATCH."""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import NIL_ARRAY, OK, CommandError, Pieces, Reply, encode
from spark_streams.engine.resp.xadd_batch import XaddBatch


@command("multi", 1, "fast intransaction loading")
def multi(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """MULTI"""
    if client.queue is not None:
        raise CommandError("ERR MULTI calls can not be nested")
    client.queue = []
    return OK


@command("discard", 1, "fast intransaction loading")
def discard(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DISCARD"""
    if client.queue is None:
        raise CommandError("ERR DISCARD without MULTI")
    client.leave_transaction()
    return OK


@command("exec", 1, "intransaction loading")
def exec_(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """EXEC"""
    if client.queue is None:
        raise CommandError("ERR EXEC without MULTI")
    for db, key in client.watching:
        db.expire_if_due(key)  # a watched key that has expired counts as changed
    queue, broken, dirty = client.queue, client.broken, client.dirty
    client.leave_transaction()
    if broken:
        raise CommandError("EXECABORT Transaction discarded because of previous errors.")
    if dirty:
        return NIL_ARRAY
    replies: list[bytes] = []
    count = 0
    engine.in_transaction = True
    journal = engine.journal
    if journal is not None:
        journal.begin()
    try:
        for request in queue:
            if isinstance(request, XaddBatch):
                count += len(request.sections)
                batch_replies = engine.execute_batch(client, request)
                if batch_replies is not None:
                    replies.append(batch_replies)
                    continue
                commands = request.commands()
            else:
                count += 1
                commands = [request]
            for command in commands:
                reply = engine.execute(client, command)
                # Encoded immediately: the next command may change the data that the reply refers to, and the protocol.
                replies.append(encode(reply if reply is not None else b"", client.resp))
    finally:
        engine.in_transaction = False
        if journal is not None:
            journal.end()
    engine.serve_ready()
    return Pieces(count, replies)


@command("watch", -2, "fast intransaction loading", (1, -1, 1))
def watch(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """WATCH key …"""
    if client.queue is not None:
        raise CommandError("ERR WATCH inside MULTI is not allowed")
    for key in args[1:]:
        client.db.expire_if_due(key)
        engine.memory.grow(client.watch(client.db, key))
    return OK


@command("unwatch", 1, "fast loading")
def unwatch(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """UNWATCH"""
    client.unwatch()
    return OK
