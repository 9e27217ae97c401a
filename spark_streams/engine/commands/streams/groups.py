"""XGROUP and XACK."""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import BAD_ID, any_entry_id, entry_id, help_lines, integer_of
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import OK, Array, CommandError, Reply, integer, simple
from spark_streams.engine.store import entryid
from spark_streams.engine.store.group import Group
from spark_streams.engine.store.stream import Stream


def _options(args: list[bytes], creating: bool) -> tuple[bool, int | None]:
    make, entries_read = False, None
    index = 5
    while index < len(args):
        option = args[index].lower()
        if creating and option == b"mkstream":
            make = True
            index += 1
        elif option == b"entriesread" and index + 1 < len(args):
            value = integer_of(args[index + 1])
            if value < -1:
                raise CommandError("ERR value for ENTRIESREAD must be positive or -1")
            entries_read = None if value == -1 else value
            index += 2
        else:
            raise CommandError(
                b"ERR unknown subcommand or wrong number of arguments for '%b'. Try XGROUP HELP." % args[1][:128]
            )
    return make, entries_read


def _stream(client: Client, args: list[bytes]) -> Stream:
    stream = client.db.stream(args[2])
    if stream is None:
        raise CommandError(
            "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
            "MKSTREAM option to create an empty stream automatically."
        )
    return stream


def _group(client: Client, args: list[bytes]) -> tuple[Stream, Group]:
    stream = _stream(client, args)
    group = stream.groups.get(args[3])
    if group is None:
        raise CommandError(b"NOGROUP No such consumer group '%b' for key name '%b'" % (args[3], args[2]))
    return stream, group


def _capped(entries_read: int | None, stream: Stream | None, args: list[bytes]) -> int | None:
    """Cap entries_read at the entries ever added.

    The journal gets the capped value, because older Redis does not cap.
    """
    added = stream.entries_added if stream is not None else 0
    if entries_read is None or entries_read <= added:
        return entries_read
    for index in range(5, len(args) - 1):
        if args[index].lower() == b"entriesread":
            args[index + 1] = b"%d" % added
    return added


@command("xgroup|create", -5, "write denyoom", (2, 2, 1))
def create(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP CREATE key group id|$ [MKSTREAM] [ENTRIESREAD n]"""
    make, entries_read = _options(args, creating=True)
    stream = client.db.stream(args[2]) if make else _stream(client, args)
    last = (stream.last_id if stream is not None else 0) if args[4] == b"$" else entry_id(args[4])
    if stream is None:
        stream = Stream(engine.node_limits)
        client.db.set(args[2], stream, changes=0)
    elif args[3] in stream.groups:
        raise CommandError("BUSYGROUP Consumer Group name already exists")
    stream.groups[args[3]] = Group(last, _capped(entries_read, stream, args))
    client.db.touch_groups(args[2])
    return OK


@command("xgroup|setid", -5, "write", (2, 2, 1))
def setid(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP SETID key group id|$ [ENTRIESREAD n]"""
    entries_read = _options(args, creating=False)[1]
    stream, group = _group(client, args)
    group.last_id = stream.last_id if args[4] == b"$" else any_entry_id(args[4])
    group.entries_read = _capped(entries_read, stream, args)
    client.db.touch_groups(args[2])
    return OK


@command("xgroup|destroy", 4, "write", (2, 2, 1))
def destroy(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP DESTROY key group"""
    if _stream(client, args).groups.pop(args[3], None) is None:
        return integer(0)
    client.db.touch_groups(args[2])
    return integer(1)


@command("xgroup|createconsumer", 5, "write denyoom", (2, 2, 1))
def createconsumer(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP CREATECONSUMER key group consumer"""
    group = _group(client, args)[1]
    if args[4] in group.consumers:
        return integer(0)
    group.consumer(args[4], engine.now)
    client.db.touch_groups(args[2])
    return integer(1)


@command("xgroup|delconsumer", 5, "write", (2, 2, 1))
def delconsumer(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP DELCONSUMER key group consumer"""
    group = _group(client, args)[1]
    existed = args[4] in group.consumers
    dropped = group.drop_consumer(args[4])
    if existed:
        client.db.touch_groups(args[2])
    return integer(dropped)


_HELP = """
CREATE <key> <groupname> <id|$> [option]
    Create a new consumer group. Options are:
    * MKSTREAM
      Create the empty stream if it does not exist.
    * ENTRIESREAD entries_read
      Set the group's entries_read counter (internal use).
CREATECONSUMER <key> <groupname> <consumer>
    Create a new consumer in the specified group.
DELCONSUMER <key> <groupname> <consumer>
    Remove the specified consumer.
DESTROY <key> <groupname>
    Remove the specified group.
SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]
    Set the current group ID and entries_read counter.
"""


@command("xgroup|help", 2, "loading stale")
def xgroup_help(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP HELP"""
    return Array([simple(line) for line in help_lines("XGROUP", _HELP)])


@command("xack", -4, "write fast", (1, 1, 1))
def xack(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XACK key group id …"""
    stream = client.db.stream(args[1])
    group = stream.groups.get(args[2]) if stream is not None else None
    if stream is None or group is None:
        return integer(0)
    try:
        dropped = group.acknowledge(args[3:], stream)
    except entryid.EntryIdError:
        raise CommandError(BAD_ID) from None
    if dropped:
        client.db.touch_groups(args[1], dropped)
    return integer(dropped)
