"""Wait until a group has undelivered entries, with one command a second at most.

    XINFO GROUPS    of each stream: position and lag of the group. XLEN if it has no such group: then all entries count
    XREAD BLOCK     of all streams, once per node, if there is no undelivered entry: the next entry ends it

So waiting costs no commands while nothing happens. While there are fewer entries than wanted, only XINFO GROUPS is
repeated. A lag that the server does not know is counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.admin.groups import count_between, nth_from
from spark_streams.connector.errors import GroupMissingError, RStreamError, StreamMissingError, StreamStateError
from spark_streams.connector.wire.connect import BlockedRead
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_no_such_key
from spark_streams.connector.wire.scan import hint_of_near, suggest_names
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import group_named, groups_in, lag_of, stream_states

_LONGEST = 60.0  # seconds of a blocking read: a connection that was lost without a sign is noticed then
_MARGIN = 0.5  # seconds that the server is given to end it by itself
_SHOWN = 3  # groups that an error names
_COUNTED_BY = 500  # entries for each command that counts them, or fewer


class Undelivered(NamedTuple):
    """Undelivered entries of a stream. position: of the group; commands: that it took to find them."""

    position: StreamId
    entries: int
    commands: int


class _Pace:
    """Delays commands to one a second on average. burst: commands that may be sent at once after a pause."""

    def __init__(self, burst: int) -> None:
        self._burst = burst
        self._due = 0.0

    def take(self, commands: int, most: float) -> None:
        """Wait until so many commands may be sent, `most` seconds at most."""
        now = time.monotonic()
        self._due = max(self._due, now - self._burst) + commands
        time.sleep(max(0.0, min(self._due - now, most)))


def wait_for_entries(
    session: Session, streams: Sequence[str], group: str, entries: int, seconds: float
) -> dict[str, int] | None:
    """Wait until the streams have at least so many undelivered entries together. Return how many each has; None: the
    time is over. Raises WrongKeyTypeError, ServerError."""
    deadline = time.monotonic() + seconds
    pace, read = _Pace(len(streams) + 1), BlockedRead(session.address)
    was_woken = False
    try:
        while True:
            pace.take(len(streams), deadline - time.monotonic())
            fetch = partial(fetch_undelivered, group=group, limit=entries, must_count=was_woken)
            found = {stream: session.run(partial(fetch, stream=stream)) for stream in streams}
            pace.take(sum(one.commands for one in found.values()) - len(streams), 0.0)
            total = sum(one.entries for one in found.values())
            if total >= entries:
                return {stream: one.entries for stream, one in found.items()}
            if time.monotonic() >= deadline:
                return None
            was_woken = not total and _next_entry(read, pace, {s: one.position for s, one in found.items()}, deadline)
    finally:
        read.close()


def fetch_undelivered(server: Server, stream: str, group: str, limit: int, must_count: bool = False) -> Undelivered:
    """Return the undelivered entries of a stream: all of them, if it has no such group. limit: of counting; must_count:
    count also if the server reports none. Raises WrongKeyTypeError, ServerError."""
    command = ("XINFO", "GROUPS", stream)
    info = group_named(group, server.execute_all([command], is_no_such_key)[0])
    if info is None:
        return Undelivered(MIN_ID, server.execute("XLEN", stream), 2)
    commands = 1
    if info.lag is not None and info.lag >= limit:  # the position may contradict it
        head = stream_states(server, [stream])[stream]
        lag, commands = lag_of(info, head.length, head.first, head.top), 2
        if lag is not None:
            return Undelivered(info.last_delivered, lag, commands)
        info = info._replace(lag=None)
    if info.lag is None or (must_count and info.lag == 0):
        end = nth_from(server, stream, info.last_delivered, limit)
        counted = count_between(server, stream, info.last_delivered, end)
        commands += 4 + 2 * (counted // _COUNTED_BY)
        if not counted:
            return Undelivered(info.last_delivered, 0, commands)
        now = group_named(group, server.execute_all([command], is_no_such_key)[0])
        if now is not None and now.last_delivered != info.last_delivered:
            return Undelivered(now.last_delivered, 0, commands + 1)  # others have read: the rest is counted next
        return Undelivered(info.last_delivered, counted, commands + 1)
    return Undelivered(info.last_delivered, info.lag, commands)


def find_missing(server: Server, streams: Sequence[str], group: str) -> list[StreamStateError]:
    """Return an error for each stream that does not exist or does not have the group. Raises WrongKeyTypeError,
    ServerError."""
    commands = [("XINFO", "GROUPS", stream) for stream in streams]
    errors: list[StreamStateError] = []
    replies = server.execute_all(commands, is_no_such_key)
    gone = [stream for stream, reply in zip(streams, replies, strict=True) if is_no_such_key(reply)]
    near = suggest_names(server, gone, {*gone})
    for stream, reply in zip(streams, replies, strict=True):
        if is_no_such_key(reply):
            hint = hint_of_near([near[stream]] if stream in near else [])
            errors.append(StreamMissingError(f"no stream {stream!r} at {server.address}; {hint}"))
        elif group_named(group, reply) is None:
            named = ", ".join(sorted(repr(info.name.decode("utf-8", "replace")) for info in groups_in(reply))[:_SHOWN])
            has = f"it has {named}" if named else "it has none"
            errors.append(GroupMissingError(f"stream {stream!r} at {server.address} has no group {group!r}; {has}"))
    return errors


def _next_entry(read: BlockedRead, pace: _Pace, positions: Mapping[str, StreamId], deadline: float) -> bool:
    """Wait for an entry above the positions. Whether there may be one."""
    if read.refused is not None:
        return False  # the pace of XINFO GROUPS is all that remains
    pace.take(1, deadline - time.monotonic())
    left = min(_LONGEST, max(0.001, deadline - time.monotonic()))
    try:
        read.begin(positions, left)
        return read.is_over(left + _MARGIN)
    except RStreamError:
        read.close()  # the next XINFO GROUPS meets the same error, and waits or raises it
        return False
