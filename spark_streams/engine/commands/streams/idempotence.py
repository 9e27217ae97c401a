"""XCFGSET and XIDMPRECORD: the remembered messages of XADD IDMP and IDMPAUTO."""

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
    settings: dict[bytes, int] = {}
    for index in range(2, len(args), 2):
        option = args[index].lower()
        if option not in bounds or index + 1 == len(args):
            raise syntax_error()
        shown = option.decode().upper()
        if option in settings:
            raise CommandError(f"ERR {shown} specified multiple times")
        highest, unit = bounds[option]
        settings[option] = integer_of(args[index + 1])
        if not 1 <= settings[option] <= highest:
            raise CommandError(f"ERR {shown} must be between 1 and {highest} {unit}")
    if not settings:
        raise CommandError("ERR At least one parameter must be specified")
    if stream.idempotence.configure(settings.get(b"idmp-duration"), settings.get(b"idmp-maxsize")):
        client.db.touch_groups(args[1])
    return OK


@command("xidmprecord", 5, "write denyoom fast", (1, 1, 1))
def xidmprecord(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XIDMPRECORD key producer message id"""
    message_id = entry_id(args[4])
    if not args[2]:
        raise CommandError("ERR producer ID must be non-empty")
    if not args[3]:
        raise CommandError("ERR idempotent ID must be non-empty")
    stream = existing(client.db.stream(args[1]))
    if stream.find(message_id) is None:
        raise CommandError("ERR No such message in stream")
    recorded_id = stream.idempotence.find(args[2], args[3])
    if engine.loading and recorded_id not in (None, message_id):
        # The message had expired when it was added again. While a file is loaded, no message expires.
        stream.idempotence.forget(args[2], args[3])
        recorded_id = None
    if recorded_id is None:
        stream.idempotence.remember(args[2], args[3], message_id)
        client.db.touch_groups(args[1])
    elif recorded_id != message_id:
        raise CommandError("ERR IID already exists for this producer with a different stream ID")
    return OK
