"""Delete idle consumers without a pending entry, such as those of clients that ran once. Consumers of running queries
stay.

A client may read just before its consumer is deleted. No command deletes a consumer only if it is empty, and WATCH does
not notice XREADGROUP (R20). So the transaction also lists what each consumer holds, and what is lost is given back:

    MULTI   XPENDING stream group - + … name   XGROUP DELCONSUMER stream group name   EXEC
    XCLAIM stream group name 0 ID IDLE … RETRYCOUNT … FORCE JUSTID      if entries were pending after all
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.base.printable import name_text
from spark_streams.connector.admin.groups import GroupSnapshot, change, fetch_group, groups_of, queries_among
from spark_streams.connector.wire.connection.connection import Argument
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import ConsumerInfo

_TOGETHER = 200  # consumers in a transaction, which blocks the server
_ALL = 1 << 31  # entries of a consumer


@dataclass
class IdleConsumers:
    """Consumers of a group that were, or would be, deleted, each with its idle time in milliseconds. position: of the
    group; given_back: those that had read meanwhile and are kept, each with the number of its entries."""

    stream: str
    group: str
    position: str
    consumers: dict[str, int]
    given_back: dict[str, int] = field(default_factory=dict)


def find_idle_consumers(
    server: Server, streams: Sequence[str], groups: Sequence[str], exact: bool, idle_ms: int
) -> list[IdleConsumers]:
    """Return the groups that have such consumers. groups: names or patterns, empty for all; exact: all are names.
    Groups whose names are not UTF-8 are left out. Raises StreamStateError, ServerError."""
    named = [
        (stream, name) for stream, group in groups_of(server, streams) if (name := name_text(group)).encode() == group
    ]
    wanted = NamesAndPatterns.divide(groups, {*groups} if exact else {name for _, name in named})
    snapshots = [fetch_group(server, *name) for name in named if not groups or wanted.selects(name[1])]
    found = [
        IdleConsumers(
            *(snapshot.stream, snapshot.group, str(snapshot.position)),
            {info.text: info.idle for info in _idle_in(snapshot, idle_ms)},
        )
        for snapshot in snapshots
    ]
    return [one for one in found if one.consumers]


def _idle_in(snapshot: GroupSnapshot, idle_ms: int) -> list[ConsumerInfo]:
    return [
        info
        for info in snapshot.consumers
        if not info.pending and info.idle >= idle_ms and info.text not in snapshot.holders
    ]


def delete_idle_consumers(server: Server, planned: IdleConsumers, idle_ms: int) -> IdleConsumers:
    """Delete those of the planned consumers that are still idle. Raises GroupInUseError, ServerError."""
    stream, group = planned.stream, planned.group
    idle = _idle_in(fetch_group(server, stream, group), idle_ms)
    infos = [info for info in idle if info.text in planned.consumers]
    done = IdleConsumers(stream, group, planned.position, {})
    for first in range(0, len(infos), _TOGETHER):
        page = infos[first : first + _TOGETHER]
        kept = delete_without_entries(server, stream, group, page)
        done.consumers |= {info.text: info.idle for info in page if not kept[info.text]}
        done.given_back |= {name: entries for name, entries in kept.items() if entries}
    return done


def delete_without_entries(
    server: Server, stream: str, group: str, consumers: Sequence[ConsumerInfo]
) -> dict[str, int]:
    """Delete these consumers, unless one has read meanwhile. Return how many entries each has read, 0: it is deleted.
    Raises GroupInUseError, ServerError."""
    commands: list[Sequence[Argument]] = []
    for name in (info.name for info in consumers):
        commands += [
            ("XPENDING", stream, group, "-", "+", _ALL, name),
            ("XGROUP", "DELCONSUMER", stream, group, name),
        ]
    replies = change(server, stream, group, queries_among(info.text for info in consumers), commands)
    entries = {info.text: pending for info, pending in zip(consumers, replies[::2], strict=True)}
    server.execute_all(
        [
            ("XCLAIM", stream, group, name, 0, entry, "IDLE", idle, "RETRYCOUNT", deliveries, "FORCE", "JUSTID")
            for pending in entries.values()
            for entry, name, idle, deliveries in pending
        ]
    )
    return {name: len(pending) for name, pending in entries.items()}
