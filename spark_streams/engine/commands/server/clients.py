"""CLIENT: list, name, unblock and disconnect clients."""

from __future__ import annotations

from collections.abc import Callable

from spark_streams.engine.client import REPLY_OFF, REPLY_ON, REPLY_SKIP_NEXT, Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import help_lines, integer_of, name_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp import wire_replies as replies


@command("client|id", 2, "loading")
def client_id(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT ID"""
    return replies.integer(client.id)


@command("client|setname", 3, "loading")
def client_setname(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT SETNAME name"""
    client.name = name_of(args[2])
    return replies.OK


@command("client|getname", 2, "loading")
def client_getname(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT GETNAME"""
    return replies.bulk(client.name) if client.name else replies.NIL


@command("client|setinfo", 4, "loading")
def client_setinfo(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT SETINFO LIB-NAME|LIB-VER value"""
    option = args[2].lower()
    if option not in (b"lib-name", b"lib-ver"):
        raise replies.CommandError(b"ERR Unrecognized option '%b'" % args[2])
    shown = option.decode()
    value = name_of(args[3], f"ERR {shown} cannot contain spaces, newlines or special characters.")
    if option == b"lib-name":
        client.lib_name = value
    else:
        client.lib_ver = value
    return replies.OK


def _describe(engine: Engine, client: Client) -> str:
    """Return one line of CLIENT LIST."""
    now = engine.now
    read, waiting = engine.describe_buffers(client)
    flags = "b" if client.waiter is not None else ""
    flags += "x" if client.queue is not None else ""
    queued = len(client.queue) if client.queue is not None else -1
    return (
        f"id={client.id} addr={client.address} laddr={client.laddr} fd=-1 name={client.name.decode()} "
        f"age={(now - client.created) // 1000} idle={(now - client.last_seen) // 1000} flags={flags or 'N'} "
        f"db={client.db.number} sub=0 psub=0 ssub=0 multi={queued} watch={len(client.watching)} qbuf={read} "
        f"omem={waiting} tot-mem={read + waiting} events={'rw' if waiting else 'r'} "
        f"cmd={client.last_command.decode('utf-8', 'replace').lower() or 'NULL'} user=default redir=-1 "
        f"resp={client.resp} lib-name={client.lib_name.decode()} lib-ver={client.lib_ver.decode()}"
    )


@command("client|info", 2, "loading")
def client_info(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT INFO"""
    return replies.Verbatim(_describe(engine, client).encode() + b"\n")


@command("client|list", -2, "loading")
def client_list(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT LIST [TYPE type] [ID id …]"""
    clients = list(engine.clients.values())
    if len(args) > 2:
        if args[2].lower() == b"id" and len(args) > 3:
            ids = {integer_of(text, "ERR Invalid client ID") for text in args[3:]}
            clients = [listed for listed in clients if listed.id in ids]
        elif args[2].lower() == b"type" and len(args) == 4:
            clients = clients if _is_normal(args[3]) else []
        else:
            raise syntax_error()
    return replies.Verbatim("".join(_describe(engine, listed) + "\n" for listed in clients).encode())


def _is_normal(kind: bytes) -> bool:
    """Whether this client type is the one that this engine has. Raises CommandError."""
    if kind.lower() not in (b"normal", b"master", b"replica", b"slave", b"pubsub"):
        raise replies.CommandError(b"ERR Unknown client type '%b'" % kind)
    return kind.lower() == b"normal"


@command("client|reply", 3, "loading")
def client_reply(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT REPLY ON|OFF|SKIP"""
    mode = args[2].lower()
    if mode == b"on":
        client.reply_mode = REPLY_ON
        return replies.OK
    if mode == b"off":
        client.reply_mode = REPLY_OFF
    elif mode == b"skip":
        if client.reply_mode != REPLY_OFF:
            client.reply_mode = REPLY_SKIP_NEXT
    else:
        raise syntax_error()
    return b""


@command("client|unblock", -3, "loading")
def client_unblock(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT UNBLOCK id [TIMEOUT|ERROR]"""
    reason = args[3].lower() if len(args) == 4 else b"timeout"
    if len(args) > 4 or reason not in (b"timeout", b"error"):
        raise replies.CommandError("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    target = engine.clients.get(integer_of(args[2]))
    if target is None or target.waiter is None:
        return replies.integer(0)
    refused = replies.error(b"UNBLOCKED client unblocked via CLIENT UNBLOCK")
    engine.waiters.finish(target.waiter, refused if reason == b"error" else target.waiter.timeout_reply)
    return replies.integer(1)


@command("client|kill", -3, "loading")
def client_kill(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT KILL address | [ID id] [ADDR a] [LADDR a] [USER u] [TYPE t] [MAXAGE s] [SKIPME yes|no] …"""
    if len(args) == 3:
        return _kill_address(engine, client, args[2])
    if len(args) % 2:
        raise syntax_error()
    tests: list[Callable[[Client], bool]] = []
    skip_me = True
    for option, value in zip(map(bytes.lower, args[2::2]), args[3::2], strict=True):
        if option == b"skipme":
            skip_me = _yes_or_no(value)
        else:
            tests.append(_kill_test(engine, option, value))
    targets = [other for other in engine.clients.values() if all(test(other) for test in tests)]
    targets = [other for other in targets if other is not client or not skip_me]
    for other in targets:
        _kill(engine, client, other)
    return replies.integer(len(targets))


def _kill_address(engine: Engine, client: Client, address: bytes) -> replies.Reply:
    """CLIENT KILL address"""
    address_text = address.decode("utf-8", "replace")
    for other in list(engine.clients.values()):
        if other.address == address_text:
            _kill(engine, client, other)
            return replies.OK
    raise replies.CommandError("ERR No such client")


def _yes_or_no(value: bytes) -> bool:
    if value.lower() not in (b"yes", b"no"):
        raise syntax_error()
    return value.lower() == b"yes"


def _kill_test(engine: Engine, option: bytes, value: bytes) -> Callable[[Client], bool]:
    """Return the test that one option of CLIENT KILL applies to a client. Raises CommandError."""
    text = value.decode("utf-8", "replace")
    match option:
        case b"id":
            number = integer_of(value, "ERR client-id should be greater than 0")
            if number < 1:
                raise replies.CommandError("ERR client-id should be greater than 0")
            return lambda other: other.id == number
        case b"addr":
            return lambda other: other.address == text
        case b"laddr":
            return lambda other: other.laddr == text
        case b"user" if value != b"default":
            raise replies.CommandError(b"ERR No such user '%b'" % value)
        case b"user":
            return lambda other: True
        case b"type":
            normal = _is_normal(value)
            return lambda other: normal
        case b"maxage":
            age = integer_of(value, "ERR maxage is not an integer or out of range")
            if age < 1:
                raise replies.CommandError("ERR maxage should be greater than 0")
            return lambda other: engine.now - other.created >= age * 1000
        case _:
            raise syntax_error()


def _kill(engine: Engine, client: Client, target: Client) -> None:
    if target is client:
        client.closing = True
    else:
        engine.disconnect(target)


_HELP = """
GETNAME, SETNAME <name>
    What this connection calls itself.
ID, INFO
    This connection's number, and its line of LIST.
KILL <address>
KILL <ADDR|LADDR|ID|USER|TYPE|MAXAGE|SKIPME> <value> [...]
    Hang up on those to whom all of it applies.
LIST [TYPE normal | ID <id> ...]
    A line for each connection.
REPLY <ON|OFF|SKIP>
    Which replies this connection gets.
SETINFO <LIB-NAME|LIB-VER> <value>
    Which library this is.
UNBLOCK <id> [TIMEOUT|ERROR]
    End a blocking command of another connection.
"""


@command("client|help", 2, "loading")
def client_help(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """CLIENT HELP"""
    return replies.Array([replies.simple(line) for line in help_lines("CLIENT", _HELP)])
