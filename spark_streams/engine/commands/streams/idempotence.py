"""XCFGSET and XIDMPRECORD: the memory behind XADD IDMP and IDMPAUTO."""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import entry_id, integer_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import OK, CommandError, Reply
from spark_streams.engine.store.idempotence import MAX_DURATION, MAX_SIZE
from spark_streams.engine.store.keyspace import existing


@command("xcfgset", -2, "write fast", (1, 1, 1))
def xcfgset(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE messages]"""
    stream = existing(client.db.stream(args[1]))
    bounds = {b"idmp-duration": (MAX_DURATION, "seconds"), b"idmp-maxsize": (MAX_SIZE, "entries")}
    given: dict[bytes, int] = {}
    for at in range(2, len(args), 2):
        option = args[at].lower()
        if option not in bounds or at + 1 == len(args):
            raise syntax_error()
        shown = option.decode().upper()
        if option in given:
            raise CommandError(f"ERR {shown} specified multiple times")
        highest, unit = bounds[option]
        given[option] = integer_of(args[at + 1])
        if not 1 <= given[option] <= highest:
            raise CommandError(f"ERR {shown} must be between 1 and {highest} {unit}")
    if not given:
        raise CommandError("ERR At least one parameter must be specified")
    if stream.idempotence.configure(given.get(b"idmp-duration"), given.get(b"idmp-maxsize")):
        client.db.touch_groups(args[1])
    return OK


@command("xidmprecord", 5, "write denyoom fast", (1, 1, 1))
def xidmprecord(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XIDMPRECORD key producer message id"""
    message = entry_id(args[4])
    if not args[2]:
        raise CommandError("ERR producer ID must be non-empty")
    if not args[3]:
        raise CommandError("ERR idempotent ID must be non-empty")
    stream = existing(client.db.stream(args[1]))
    if stream.find(message) is None:
        raise CommandError("ERR No such message in stream")
    known = stream.idempotence.find(args[2], args[3])
    if engine.loading and known not in (None, message):
        # It had run out when it came again; while a file is read nothing runs out.
        stream.idempotence.forget(args[2], args[3])
        known = None
    if known is None:
        stream.idempotence.remember(args[2], args[3], message)
        client.db.touch_groups(args[1])
    elif known != message:
        raise CommandError("ERR IID already exists for this producer with a different stream ID")
    return OK
