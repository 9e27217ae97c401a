"""XDEL, XDELEX, XACKDEL: removing entries by ID, with or without their pending references."""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import BAD_ID, entry_id, integer_of, syntax_error
from spark_streams.engine.commands.streams.stream_entries import POLICIES
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import Array, CommandError, Reply, integer
from spark_streams.engine.store import entryid, references
from spark_streams.engine.store.group import StoredGroup
from spark_streams.engine.store.references import REMOVED, UNKNOWN, Policy
from spark_streams.engine.store.stream import StoredStream


@command("xdel", -3, "write fast", (1, 1, 1))
def xdel(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XDEL key id …"""
    stream = client.db.stream(args[1])
    if stream is None:
        return integer(0)
    removed = references.remove(stream, [entry_id(text) for text in args[2:]], Policy.KEEPREF).count(REMOVED)
    if removed:
        client.db.touch(args[1], removed)
    return integer(removed)


def _options(args: list[bytes], index: int) -> tuple[Policy, list[bytes]]:
    """Parse `[KEEPREF|DELREF|ACKED] IDS n id …` in any order. As in Redis, the last IDS counts."""
    policy: Policy | None = None
    texts: list[bytes] | None = None
    while index < len(args):
        option = args[index].lower()
        if option in POLICIES and policy is None:
            policy = POLICIES[option]
            index += 1
        elif option == b"ids" and index + 1 < len(args):
            count = integer_of(args[index + 1], "ERR Number of IDs must be a positive integer")
            if count < 1:
                raise CommandError("ERR Number of IDs must be a positive integer")
            if count > len(args) - index - 2:
                raise CommandError("ERR The `numids` parameter must match the number of arguments")
            texts = args[index + 2 : index + 2 + count]
            index += 2 + count
        else:
            raise syntax_error()
    if texts is None:
        raise CommandError("ERR IDS option is required")
    return policy or Policy.KEEPREF, texts


def _codes(values: list[int]) -> Reply:
    return Array([integer(value) for value in values])


@command("xdelex", -5, "write fast", (1, 1, 1))
def xdelex(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XDELEX key [KEEPREF|DELREF|ACKED] IDS count id …"""
    stream = client.db.stream(args[1])
    policy, texts = _options(args, 2)
    if stream is None:
        return _codes([UNKNOWN] * len(texts))
    ids = [entry_id(text) for text in texts]
    pending = sum(len(group.pending) for group in stream.groups.values())
    codes = references.remove(stream, ids, policy)
    if REMOVED in codes:
        client.db.touch(args[1], codes.count(REMOVED))
    elif pending != sum(len(group.pending) for group in stream.groups.values()):
        client.db.touch_groups(args[1])
    return _codes(codes)


@command("xackdel", -6, "write fast", (1, 1, 1))
def xackdel(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XACKDEL key group [KEEPREF|DELREF|ACKED] IDS count id …"""
    stream = client.db.stream(args[1])
    policy, texts = _options(args, 3)
    group = stream.groups.get(args[2]) if stream is not None else None
    if stream is None or group is None:
        return _codes([UNKNOWN] * len(texts))
    length = stream.length
    try:
        ranges = group.ranges(texts, stream)
    except entryid.BadEntryIdError:
        raise CommandError(BAD_ID) from None
    codes: list[int] = []
    for first, last, count in ranges:
        range_texts = texts[len(codes) : len(codes) + count]
        codes += _acknowledge_and_remove(stream, group, first, last, range_texts, policy)
    acknowledged = len(codes) - codes.count(UNKNOWN)
    if stream.length != length:
        client.db.touch(args[1], acknowledged)
    elif acknowledged:
        client.db.touch_groups(args[1], acknowledged)
    return _codes(codes)


def _acknowledge_and_remove(
    stream: StoredStream, group: StoredGroup, first: int, last: int, texts: list[bytes], policy: Policy
) -> list[int]:
    pel_ranges = group.take(first, last, len(texts), stream)
    if pel_ranges is None:
        if len(texts) == 1:
            return [UNKNOWN]
        # An ID was named twice: its range has been split meanwhile.
        ids = [entryid.parse(text) for text in texts]
        return [
            code
            for pending_id, text in zip(ids, texts, strict=True)
            for code in _acknowledge_and_remove(stream, group, pending_id, pending_id, [text], policy)
        ]
    ids = [pending_id for pel_range in pel_ranges for pending_id in pel_range.id_list(stream)]
    for pel_range in pel_ranges:
        group.pending.remove(pel_range)
    # An entry that was pending and does not exist counts as removed.
    return [REMOVED if code == UNKNOWN else code for code in references.remove(stream, ids, policy)]
