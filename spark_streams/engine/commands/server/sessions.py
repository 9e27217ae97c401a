"""PING ECHO HELLO AUTH SELECT QUIT RESET; MULTI EXEC DISCARD WATCH UNWATCH."""

from __future__ import annotations

from spark_streams.engine.client import REPLY_ON, Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import database_of, integer_of, name_of, syntax_error
from spark_streams.engine.core import REDIS_VERSION, Engine
from spark_streams.engine.resp.wire_replies import (
    NIL_ARRAY,
    OK,
    PONG,
    Array,
    CommandError,
    Map,
    Pieces,
    Reply,
    bulk,
    encode,
    integer,
    simple,
)
from spark_streams.engine.resp.xadd_batch import XaddBatch


@command("ping", -1, "fast")
def ping(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """PING [message]"""
    if len(args) > 2:
        raise CommandError("ERR wrong number of arguments for 'ping' command")
    return PONG if len(args) == 1 else bulk(args[1])


@command("echo", 2, "fast loading")
def echo(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """ECHO message"""
    return bulk(args[1])


@command("hello", -1, "fast noauth loading")
def hello(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """HELLO [2|3 [AUTH user password] [SETNAME name]]"""
    resp = client.resp
    if len(args) > 1:
        version = integer_of(args[1], "ERR Protocol version is not an integer or out of range")
        if version not in (2, 3):
            raise CommandError("NOPROTO unsupported protocol version")
        resp = version
    name: bytes | None = None
    index = 2
    while index < len(args):
        option, more = args[index].lower(), len(args) - index - 1
        if option == b"auth" and more >= 2:
            engine.access.admit(client, args[index + 1], args[index + 2])
            index += 2
        elif option == b"setname" and more:
            name = name_of(args[index + 1])
            index += 1
        else:
            raise CommandError(b"ERR Syntax error in HELLO option '%b'" % args[index])
        index += 1
    if engine.access.must_authenticate(client):
        raise CommandError(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH "
            "<user> <pass> option can be used to authenticate the client and select the RESP protocol version at the "
            "same time"
        )
    if name is not None:
        client.name = name
    client.resp = resp
    return Map(
        [
            (bulk(b"server"), bulk(b"redis")),
            (bulk(b"version"), bulk(REDIS_VERSION.encode())),
            (bulk(b"proto"), integer(resp)),
            (bulk(b"id"), integer(client.id)),
            (bulk(b"mode"), bulk(b"standalone")),
            (bulk(b"role"), bulk(b"master")),
            (bulk(b"modules"), Array([])),
        ]
    )


@command("auth", -2, "fast noauth loading")
def auth(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """AUTH [user] password"""
    if len(args) > 3:
        raise syntax_error()
    if len(args) == 2 and not engine.access.has_password:
        raise CommandError(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
            "configuration is correct?"
        )
    engine.access.admit(client, args[1] if len(args) == 3 else b"default", args[-1])
    return OK


@command("select", 2, "fast loading")
def select(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SELECT index"""
    client.db = database_of(engine.databases, args[1])
    return OK


@command("quit", -1, "fast noauth intransaction loading")
def quit_(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """QUIT"""
    client.closing = True
    return OK


@command("reset", 1, "fast noauth intransaction loading")
def reset(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """RESET"""
    client.leave_transaction()
    client.authenticated = not engine.access.has_password
    client.db = engine.databases[0]
    client.name = b""
    client.resp = 2
    client.reply_mode = REPLY_ON
    return simple("RESET")


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
