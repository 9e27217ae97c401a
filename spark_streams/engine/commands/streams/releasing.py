"""XNACK: releasing delivered entries, so that the next reader that claims gets them immediately."""

from __future__ import annotations

from collections.abc import Callable

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import BAD_ID, integer_of
from spark_streams.engine.commands.streams.pending import MAX_DELIVERIES, existing_group
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import CommandError, Reply, integer
from spark_streams.engine.store import entryid
from spark_streams.engine.store.group import Group
from spark_streams.engine.store.stream import Stream

_MODES: dict[bytes, Callable[[int], int]] = {
    b"silent": lambda deliveries: max(deliveries - 1, 0),
    b"fail": lambda deliveries: deliveries,
    b"fatal": lambda deliveries: MAX_DELIVERIES,
}


@command("xnack", -7, "write fast", (1, 1, 1))
def xnack(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XNACK key group SILENT|FAIL|FATAL IDS count id … [RETRYCOUNT n] [FORCE]"""
    stream, group = existing_group(client, args)
    new_deliveries = _MODES.get(args[3].lower())
    if new_deliveries is None:
        raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")
    texts, retries, force = _options(args)
    if retries is not None:
        retry_count = retries
        new_deliveries = lambda deliveries: retry_count  # noqa: E731 - one of three functions of the same form
    try:
        ranges = group.ranges(texts, stream)
    except entryid.EntryIdError:
        raise CommandError(BAD_ID) from None
    released = sum(_release(stream, group, *range_, new_deliveries, force) for range_ in ranges)
    if released:
        client.db.touch_groups(args[1], released)
    return integer(released)


def _options(args: list[bytes]) -> tuple[list[bytes], int | None, bool]:
    texts: list[bytes] = []
    retries: int | None = None
    force = False
    index = 4
    while index < len(args):
        option, more = args[index].lower(), len(args) - index - 1
        if option == b"ids" and more:
            count = integer_of(args[index + 1], "ERR numids must be a positive integer")
            if not 1 <= count < 1 << 31:
                raise CommandError("ERR numids must be a positive integer")
            if count > len(args) - index - 2:
                raise CommandError("ERR number of IDs doesn't match numids")
            texts = args[index + 2 : index + 2 + count]
            index += 1 + count
        elif option == b"force":
            force = True
        elif option == b"retrycount" and more:
            retries = integer_of(args[index + 1])
            if retries < 0:
                raise CommandError("ERR Invalid RETRYCOUNT value, must be >= 0")
            index += 1
        else:
            raise CommandError(b"ERR Unrecognized XNACK option '%b'" % args[index])
        index += 1
    if not texts:
        raise CommandError("ERR syntax error, expected IDS keyword")
    return texts, retries, force


def _release(
    stream: Stream, group: Group, first: int, last: int, count: int, new_deliveries: Callable[[int], int], force: bool
) -> int:
    pel_ranges = group.take(first, last, count, stream)
    if pel_ranges is None:
        # Only a single ID may be not pending: releasing, unlike acknowledging, keeps IDs in the list.
        if not force or stream.find(first) is None:
            return 0
        group.pending.put(first, group.released, 0, new_deliveries(0), stream)
        return 1
    for pel_range in pel_ranges:
        group.pending.move(pel_range, group.released, 0, new_deliveries(pel_range.deliveries))
    return count
