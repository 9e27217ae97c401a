"""XNACK: giving back what was delivered, so that the next reader that claims gets it at once."""

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
    count_of = _MODES.get(args[3].lower())
    if count_of is None:
        raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")
    texts, retries, force = _options(args)
    if retries is not None:
        chosen = retries
        count_of = lambda deliveries: chosen  # noqa: E731 - one of three kinds of the same thing
    try:
        ranges = group.ranges(texts, stream)
    except entryid.EntryIdError:
        raise CommandError(BAD_ID) from None
    released = sum(_release(stream, group, *range_, count_of, force) for range_ in ranges)
    if released:
        client.db.touch_groups(args[1], released)
    return integer(released)


def _options(args: list[bytes]) -> tuple[list[bytes], int | None, bool]:
    texts: list[bytes] = []
    retries: int | None = None
    force = False
    at = 4
    while at < len(args):
        option, more = args[at].lower(), len(args) - at - 1
        if option == b"ids" and more:
            count = integer_of(args[at + 1], "ERR numids must be a positive integer")
            if not 1 <= count < 1 << 31:
                raise CommandError("ERR numids must be a positive integer")
            if count > len(args) - at - 2:
                raise CommandError("ERR number of IDs doesn't match numids")
            texts = args[at + 2 : at + 2 + count]
            at += 1 + count
        elif option == b"force":
            force = True
        elif option == b"retrycount" and more:
            retries = integer_of(args[at + 1])
            if retries < 0:
                raise CommandError("ERR Invalid RETRYCOUNT value, must be >= 0")
            at += 1
        else:
            raise CommandError(b"ERR Unrecognized XNACK option '%b'" % args[at])
        at += 1
    if not texts:
        raise CommandError("ERR syntax error, expected IDS keyword")
    return texts, retries, force


def _release(
    stream: Stream, group: Group, first: int, last: int, count: int, count_of: Callable[[int], int], force: bool
) -> int:
    pel_ranges = group.take(first, last, count, stream)
    if pel_ranges is None:
        # Only a single id may be one that is not pending: releasing, unlike acknowledging, keeps ids in the list.
        if not force or stream.find(first) is None:
            return 0
        group.pending.put(first, group.released, 0, count_of(0), stream)
        return 1
    for pel_range in pel_ranges:
        group.pending.move(pel_range, group.released, 0, count_of(pel_range.deliveries))
    return count
