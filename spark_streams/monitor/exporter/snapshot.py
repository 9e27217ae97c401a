"""One look at a server: how its streams and groups stand, what they take of its memory, why letters are dead.

It goes through the streams some at a time, fewer where their entries are large, so that memory does not depend on
these; and so that it ends when its time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_streams.deadletter.page_reader import FIRST_LOOK, PageSize, pages_of
from spark_streams.deadletter.retry.waiting_entries import WaitingEntries, waiting_entries, waiting_of
from spark_streams.errors import NotPermittedError, RStreamError, ServerError
from spark_streams.model.numbers import parse_number
from spark_streams.monitor.exporter.dead_letters import DeadLetters, Reason
from spark_streams.monitor.groups import shown
from spark_streams.monitor.lag_survey import GroupStanding, StreamStanding, survey
from spark_streams.wire.connection.connection import Connection, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import info

Refused = Callable[[RStreamError], None]


@dataclass(frozen=True)
class NodeMemory:
    """A server's memory in bytes. node: `host:port`; most: maxmemory, 0 where there is no limit."""

    node: str
    used: int
    most: int


@dataclass(frozen=True)
class Look:
    """streams, groups: as the survey has them; stream_bytes: by stream; reasons, uncounted: of dead letters; waiting:
    for another try; seconds: it took."""

    streams: tuple[StreamStanding, ...]
    groups: tuple[GroupStanding, ...]
    stream_bytes: dict[str, int]
    nodes: tuple[NodeMemory, ...]
    reasons: tuple[Reason, ...]
    uncounted: dict[str, int]
    waiting: tuple[WaitingEntries, ...]
    seconds: float


def look(
    server: Server,
    names: Sequence[str | bytes],
    letters: DeadLetters,
    refused: Refused,
    most_seconds: float,
    now: Callable[[], float] = time.monotonic,
) -> Look:
    """At these streams; those that are not there are left out. refused: is told what the user may not ask.

    Raises ServerError, also where it takes longer than `most_seconds`.
    """
    began = now()
    streams: list[StreamStanding] = []
    groups: list[GroupStanding] = []
    sizes: dict[str, int] = {}
    size, done = PageSize(first=FIRST_LOOK), 0
    for some in pages_of(names, size):
        if now() - began > most_seconds:
            raise ServerError(
                f"{done:,} of {len(names):,} streams at {server.address} took {now() - began:.1f} s to look at, and "
                f"{most_seconds:g} s is the limit: name the streams that matter, or give --time-limit"
            )
        done += len(some)
        seen = survey(server, some, refused=refused)
        streams += seen.streams
        groups += seen.groups
        there = {one.stream for one in seen.streams}
        size.learn(len(some), sum(one.end_bytes for one in seen.streams), len(some))
        sizes.update(_sizes(server, [key for key in some if shown(key) in there], refused))
    nodes = [memory for node in server.nodes() for memory in _memory(node, refused)]
    letters.look(server, streams, {shown(key): key for key in names}, refused)
    return Look(
        tuple(streams),
        tuple(groups),
        sizes,
        tuple(nodes),
        tuple(letters.reasons),
        letters.uncounted,
        _waiting(server, names, groups, refused),
        now() - began,
    )


def _waiting(
    server: Server, names: Sequence[str | bytes], groups: Sequence[GroupStanding], refused: Refused
) -> tuple[WaitingEntries, ...]:
    """What waits for another try: of these groups, and in those of these streams that are there for it."""
    raw = [name.encode() if isinstance(name, str) else name for name in names]
    try:
        found = [*waiting_of(server, [(one.stream, one.group) for one in groups]), *waiting_entries(server, raw)]
    except NotPermittedError as error:
        refused(error)
        return ()
    return tuple({one.waits_in: one for one in found}.values())


def _sizes(server: Server, keys: Sequence[str | bytes], refused: Refused) -> dict[str, int]:
    """Bytes of each stream, as the server estimates them from some of its nodes."""
    found: dict[str, int] = {}
    for some in (keys[:1], keys[1:]):  # who may not ask of one, asks of no more
        commands = [("MEMORY", "USAGE", key) for key in some]
        for command, reply in zip(commands, server.pipeline(commands), strict=True):
            if isinstance(reply, ReplyError):
                refused(server.error_of(reply, command))
                return found
            if reply is not None:  # else it is gone since
                found[shown(command[2])] = reply
    return found


def _memory(node: Connection, refused: Refused) -> list[NodeMemory]:
    [said] = node.pipeline([("INFO", "memory")])
    if isinstance(said, ReplyError):
        refused(node.error_of(said, ("INFO", "memory")))
        return []
    told = info(said)
    if "used_memory" not in told:
        return []
    at = node.node_address.nodes
    name = f"{at[0][0]}:{at[0][1]}" if at else str(node.node_address)
    return [NodeMemory(name, parse_number(told["used_memory"]) or 0, parse_number(told.get("maxmemory", "")) or 0)]
