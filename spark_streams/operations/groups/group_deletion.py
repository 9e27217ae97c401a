"""Plans that delete a group (XGROUP DESTROY) or consumers of it (XGROUP DELCONSUMER), with all keys of their queries.

Keys in the stream's slot are deleted in the transaction that deletes the group. Keys in other slots (`begun`) are
deleted before: if the command is killed in between, the group still exists, and the command can be repeated.

Idle consumers without a pending entry, such as those of clients that ran once, are deleted by themselves. Consumers of
running queries stay, and so does one that reads just before it would be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from spark_streams.base.ids import MAX_ID
from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.base.printable import name_text
from spark_streams.connector.admin.groups import (
    DEFAULT_QUERY,
    GroupKey,
    GroupSnapshot,
    Mark,
    committed_key,
    fetch_group,
    groups_of,
    queries_among,
    undelivered,
)
from spark_streams.connector.errors import GroupInUseError, StreamStateError
from spark_streams.connector.keys import keys_of_consumer
from spark_streams.connector.operator_commands import claim_command, create_command
from spark_streams.connector.wire.connection import Argument, ReplyError, Server
from spark_streams.connector.wire.replies import is_no_group, is_no_such_key
from spark_streams.connector.wire.xinfo import ConsumerInfo, consumers_in, group_named
from spark_streams.operations.groups.change_plan import NO_GROUP, UNBOUNDED, AtPosition, Only, Plan, Transaction, made
from spark_streams.operations.groups.pending_entries import Choice, acknowledge, pages, require_consumer


@dataclass
class Deleted(AtPosition):
    """A group or consumer that was, or would be, deleted on one stream."""

    stream: str
    group: str
    consumers: dict[str, int]  # with the number of pending entries that were forgotten
    pending: int
    lag: int  # entries that were not delivered to the group yet (of a consumer: 0)
    keys: list[str]  # names of deleted keys
    position: str  # of the group
    committed: dict[str, str] = field(default_factory=dict)  # the last committed entry of each query


def delete_group(server: Server, snapshot: GroupSnapshot, group_keys: Sequence[GroupKey]) -> Plan[Deleted]:
    """Delete the group (XGROUP DESTROY). group_keys: of this group and stream. Raises ServerError."""
    stream, group = snapshot.stream, snapshot.group
    slot_keys, other_keys = _split_by_slot(group_keys)
    consumer_keys = [key for name in snapshot.queries for _, key in keys_of_consumer(stream, group, name)]
    keys = dict.fromkeys([*slot_keys, *consumer_keys])
    queries, committed = _queries_of(server, stream, group, group_keys, snapshot.queries)
    reads: list[Sequence[Argument]] = [("XINFO", "GROUPS", stream), ("XINFO", "CONSUMERS", stream, group)]
    if other_keys:
        yield Transaction(stream, group, queries, reads, of_all=True)  # only to require that no query is running
        yield partial(server.execute_all, [("DEL", key) for key in other_keys])
    commands: list[Sequence[Argument]] = [*reads, ("XGROUP", "DESTROY", stream, group), ("DEL", *keys)]
    replies = yield Transaction(stream, group, queries, commands, of_all=True)
    if replies is not None:
        groups, consumers, *_ = replies
        info = group_named(group, groups) or snapshot.info
        snapshot = replace(snapshot, info=info, consumers=tuple(consumers_in(consumers)))
    return Deleted(
        stream,
        group,
        {info.text: info.pending for info in snapshot.consumers},
        snapshot.info.pending,
        undelivered(server, stream, snapshot.info, snapshot.head),
        [_shown(group_key.key) for group_key in group_keys],
        str(snapshot.position),
        committed,
    )


def _queries_of(
    server: Server, stream: str, group: str, group_keys: Sequence[GroupKey], known: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the queries with these names, and of these keys: their consumers may be missing from the group; and the
    last committed entry of each that has one."""
    queries = queries_among([*known, *(group_key.consumer for group_key in group_keys if group_key.consumer)])
    values = server.execute_all([("GET", committed_key(stream, group, name)) for name in queries])
    marks = {name: Mark.parse(value) for name, value in zip(queries, values, strict=True)}
    return queries, {name: str(mark.id) for name, mark in marks.items() if mark is not None}


def delete_leftovers(server: Server, stream: str, group: str, group_keys: Sequence[GroupKey]) -> Plan[Deleted]:
    """Delete remaining keys of a group, or of a consumer, that does not exist."""
    slot_keys, other_keys = _split_by_slot(group_keys)
    queries, committed = _queries_of(server, stream, group, group_keys, [DEFAULT_QUERY])
    yield Transaction(stream, group, queries, [("DEL", *slot_keys)] if slot_keys else [])
    yield partial(server.execute_all, [("DEL", key) for key in other_keys])
    return Deleted(stream, group, {}, 0, 0, [_shown(group_key.key) for group_key in group_keys], NO_GROUP, committed)


def resume_lines(stream: str, group: str, committed: Mapping[str, str]) -> list[str]:
    """Return how each query can continue with its checkpoint after its group was deleted. committed: the last committed
    entry of each query. Pure."""
    return [
        f"to let query {query!r} continue with its checkpoint, create the group again: "
        f"{create_command(stream, group, up_to)}"
        for query, up_to in committed.items()
    ]


def position_lines(stream: str, group: str, committed: Mapping[str, str]) -> list[str]:
    """Return what each query had committed whose consumer was deleted: no other key of the server has it. Pure."""
    return [
        f"query {query!r} of group {group!r} has committed stream {stream!r} up to {up_to}. The key that says so is "
        "deleted with the consumer"
        for query, up_to in committed.items()
    ]


def fetch_consumers(server: Server, stream: str, group: str) -> list[ConsumerInfo]:
    """Return the consumers of a group; none if there is no such group or stream."""
    [reply] = server.execute_all([("XINFO", "CONSUMERS", stream, group)], is_no_group, is_no_such_key)
    return [] if isinstance(reply, ReplyError) else consumers_in(reply)


def find_consumers(server: Server, stream: str, group: str, consumer: str) -> list[str]:
    """Return the consumers of this name; none if there is no such consumer, group or stream."""
    return [info.text for info in fetch_consumers(server, stream, group) if info.text == consumer]


def find_consumer_keys(server: Server, stream: str, group: str, consumer: str) -> list[bytes]:
    """Return the keys of a consumer's query beside a stream; none for a consumer that a query has created."""
    if not queries_among([consumer]):
        return []
    keys = [key for _, key in keys_of_consumer(stream, group, consumer)]
    counts = server.execute_all([("EXISTS", key) for key in keys])
    return [key for key, count in zip(keys, counts, strict=True) if count]


def delete_consumer(
    server: Server, snapshot: GroupSnapshot, consumer: str, forget_pending: bool, only: Only = UNBOUNDED
) -> Plan[Deleted]:
    """Delete the consumer (XGROUP DELCONSUMER).

    Its pending entries that were there at the snapshot are acknowledged, page by page; what it has read since stays
    with it, and it is not deleted. Raises GroupInUseError, ServerError, and StreamStateError if entries are pending for
    it, unless forget_pending."""
    require_consumer(snapshot, consumer)
    stream, group, infos = snapshot.stream, snapshot.group, snapshot.consumers_named([consumer])
    consumer_keys = find_consumer_keys(server, stream, group, consumer)
    held = {info.text: info.pending for info in infos}
    marks = {consumer: str(snapshot.marks[consumer].id)} if consumer in snapshot.marks else {}
    keys = [_shown(key) for key in consumer_keys]
    deleted = Deleted(stream, group, held, sum(held.values()), 0, keys, str(snapshot.position), marks)
    if (yield made) is None:
        return deleted
    last = only.id(stream, group) or MAX_ID
    above = Choice((consumer,), first=last.next(), limit=1) if last < MAX_ID else None
    if above is not None and any(True for _ in pages(server, snapshot, above)):
        raise _has_read(snapshot, consumer)
    if deleted.pending and not forget_pending:
        raise StreamStateError(
            f"{deleted.pending:,} entries of stream {stream!r} are pending for consumer {consumer!r} of group "
            f"{group!r}, and would not be delivered again. Hand them over first "
            f"({claim_command(stream, group, consumer)}), or drop them with --forget-pending"
        )
    acknowledged = yield from acknowledge(server, snapshot, Choice((consumer,), last=min(last, snapshot.position)))
    deleted.pending = acknowledged.entries
    deleted.consumers = {info.text: deleted.pending for info in infos}
    read = yield from delete_without_entries(server, stream, group, infos)
    if any(read.values()):
        raise _has_read(snapshot, consumer)
    if consumer_keys:
        queries = queries_among([consumer]) or snapshot.queries
        yield Transaction(stream, group, queries, [("DEL", *consumer_keys)])
    return deleted


def _has_read(snapshot: GroupSnapshot, consumer: str) -> GroupInUseError:
    return GroupInUseError(
        f"consumer {consumer!r} of group {snapshot.group!r} of stream {snapshot.stream!r} has read meanwhile, and is "
        "not deleted: the entries that it has read stay pending for it. Stop it, and repeat the command"
    )


def _split_by_slot(group_keys: Sequence[GroupKey]) -> tuple[list[bytes], list[bytes]]:
    """Return the keys in the stream's slot, and the keys that may be in another slot."""
    other_keys = [group_key.key for group_key in group_keys if group_key.kind == "begun"]
    return [group_key.key for group_key in group_keys if group_key.key not in other_keys], other_keys


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


# -- idle consumers ----------------------------------------------------------------------------------------------------

_TOGETHER = 200  # consumers in a transaction, which blocks the server
_ALL = 1 << 31  # entries of a consumer


@dataclass
class IdleConsumers(AtPosition):
    """Consumers of a group that were, or would be, deleted."""

    stream: str
    group: str
    position: str  # of the group
    consumers: dict[str, int]  # each with its idle time in milliseconds
    given_back: dict[str, int] = field(default_factory=dict)  # had read meanwhile and are kept, with their entries


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


def delete_idle_consumers(server: Server, found: IdleConsumers, idle_ms: int) -> Plan[IdleConsumers]:
    """Delete those of the consumers that are still idle. Raises ServerError."""
    if (yield made) is None:
        return found
    stream, group = found.stream, found.group
    idle = _idle_in(fetch_group(server, stream, group), idle_ms)
    infos = [info for info in idle if info.text in found.consumers]
    done = IdleConsumers(stream, group, found.position, {})
    for first in range(0, len(infos), _TOGETHER):
        page = infos[first : first + _TOGETHER]
        kept = yield from delete_without_entries(server, stream, group, page)
        done.consumers |= {info.text: info.idle for info in page if not kept[info.text]}
        done.given_back |= {name: entries for name, entries in kept.items() if entries}
    return done


def delete_without_entries(
    server: Server, stream: str, group: str, consumers: Sequence[ConsumerInfo]
) -> Plan[dict[str, int]]:
    """Delete these consumers, unless one has read meanwhile. Return how many entries each has read, 0: it is deleted.

    No command deletes a consumer only if it is empty, and WATCH does not notice XREADGROUP (R20). So the transaction
    also lists what each consumer holds, and what is lost is given back:

        MULTI   XPENDING stream group - + … name   XGROUP DELCONSUMER stream group name   EXEC
        XCLAIM stream group name 0 ID IDLE … RETRYCOUNT … FORCE JUSTID      if entries were pending after all
    """
    commands: list[Sequence[Argument]] = []
    for name in (info.name for info in consumers):
        commands += [
            ("XPENDING", stream, group, "-", "+", _ALL, name),
            ("XGROUP", "DELCONSUMER", stream, group, name),
        ]
    replies = yield Transaction(stream, group, queries_among(info.text for info in consumers), commands)
    entries = {info.text: pending for info, pending in zip(consumers, replies[::2], strict=True)}
    server.execute_all(
        [
            ("XCLAIM", stream, group, name, 0, entry, "IDLE", idle, "RETRYCOUNT", deliveries, "FORCE", "JUSTID")
            for pending in entries.values()
            for entry, name, idle, deliveries in pending
        ]
    )
    return {name: len(pending) for name, pending in entries.items()}
