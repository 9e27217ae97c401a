"""PING ECHO HELLO AUTH SELECT QUIT RESET."""

from __future__ import annotations

from spark_streams.engine.client import REPLY_ON, Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import database_of, integer_of, name_of, syntax_error
from spark_streams.engine.core import REDIS_VERSION, Engine
from spark_streams.engine.resp.replies import OK, PONG, Array, CommandError, Map, Reply, bulk, integer, simple


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
