"""Delete a group (XGROUP DESTROY) or one of its consumers (XGROUP DELCONSUMER), with all keys of their queries.

Keys in the stream's slot are deleted in the transaction that deletes the group. Keys in other slots (`begun`) are
deleted before: if the command is killed in between, the group still exists, and the command can be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.admin.groups import (
    DEFAULT_QUERY,
    GroupKey,
    GroupSnapshot,
    change,
    queries_among,
    undelivered,
)
from spark_streams.connector.errors import GroupInUseError, StreamStateError
from spark_streams.connector.keys import keys_of_consumer
from spark_streams.connector.operator_commands import create_command
from spark_streams.connector.wire.connection.connection import Argument, ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_no_group, is_no_such_key
from spark_streams.connector.wire.replies.xinfo import consumers_in, group_named
from spark_streams.operations.groups.acknowledge import acknowledge
from spark_streams.operations.groups.idle_consumers import delete_without_entries
from spark_streams.operations.groups.pending_selection import Choice, pages


@dataclass
class Deleted:
    """A group or consumer that was, or would be, deleted on one stream. consumers: with the number of pending entries
    that were forgotten; lag: entries that were not delivered to the group yet (of a consumer: 0);
    keys: names of deleted keys; position: of the group; committed: the last committed entry of each query."""

    stream: str
    group: str
    consumers: dict[str, int]
    pending: int
    lag: int
    keys: list[str]
    position: str
    committed: dict[str, str] = field(default_factory=dict)


def require_consumers(snapshot: GroupSnapshot, consumer: str) -> list[str]:
    """Return the names of a consumer and of the consumers that it has created as a query. Raises StreamStateError if
    there is none."""
    names = [info.text for info in snapshot.consumers if consumer == info.text]
    if not names:
        raise StreamStateError(
            f"group {snapshot.group!r} of stream {snapshot.stream!r} has no consumer {consumer!r}. To list its "
            f"consumers: rstream pending {snapshot.stream}"
        )
    return names


def find_consumers(server: Server, stream: str, group: str, consumer: str) -> list[str]:
    """Return the same names; empty if there is no such consumer, group or stream."""
    [reply] = server.execute_all([("XINFO", "CONSUMERS", stream, group)], is_no_group, is_no_such_key)
    names = [] if isinstance(reply, ReplyError) else [info.text for info in consumers_in(reply)]
    return [name for name in names if consumer == name]


def plan_delete_group(server: Server, snapshot: GroupSnapshot, group_keys: Sequence[GroupKey]) -> Deleted:
    """Return what deleting the group would delete. Raises ServerError."""
    marks = {name: str(mark.id) for name, mark in snapshot.marks.items()}
    consumers = {info.text: info.pending for info in snapshot.consumers}
    return Deleted(
        snapshot.stream,
        snapshot.group,
        consumers,
        snapshot.info.pending,
        undelivered(server, snapshot.stream, snapshot.info, snapshot.head),
        [_shown(group_key.key) for group_key in group_keys],
        str(snapshot.position),
        marks,
    )


def delete_group(server: Server, snapshot: GroupSnapshot, group_keys: Sequence[GroupKey]) -> Deleted:
    """Delete the group, and return what was deleted. group_keys: of this group and stream. Raises GroupInUseError,
    ServerError."""
    stream, group = snapshot.stream, snapshot.group
    slot_keys, other_keys = _split_by_slot(group_keys)
    consumer_keys = [key for name in snapshot.queries for _, key in keys_of_consumer(stream, group, name)]
    keys = dict.fromkeys([*slot_keys, *consumer_keys])
    queries = list(
        dict.fromkeys(
            [*snapshot.queries, *queries_among([group_key.consumer for group_key in group_keys if group_key.consumer])]
        )
    )
    reads: list[Sequence[Argument]] = [("XINFO", "GROUPS", stream), ("XINFO", "CONSUMERS", stream, group)]
    if other_keys:
        change(server, stream, group, queries, reads)  # only to require that no query is running
        server.execute_all([("DEL", key) for key in other_keys])
    commands: list[Sequence[Argument]] = [*reads, ("XGROUP", "DESTROY", stream, group), ("DEL", *keys)]
    groups, consumers, *_ = change(server, stream, group, queries, commands)
    info = group_named(group, groups) or snapshot.info
    last = GroupSnapshot(
        stream, group, snapshot.head, info, tuple(consumers_in(consumers)), snapshot.marks, snapshot.holders
    )
    return plan_delete_group(server, last, group_keys)


def delete_leftovers(server: Server, stream: str, group: str, group_keys: Sequence[GroupKey]) -> Deleted:
    """Delete remaining keys of a group that does not exist. Raises GroupInUseError if a query holds a lease."""
    slot_keys, other_keys = _split_by_slot(group_keys)
    queries = queries_among([group_key.consumer for group_key in group_keys if group_key.consumer], DEFAULT_QUERY)
    change(server, stream, group, queries, [("DEL", *slot_keys)] if slot_keys else [])
    server.execute_all([("DEL", key) for key in other_keys])
    return plan_delete_leftovers(stream, group, group_keys)


def plan_delete_leftovers(stream: str, group: str, group_keys: Sequence[GroupKey]) -> Deleted:
    """Return what delete_leftovers would delete."""
    return Deleted(stream, group, {}, 0, 0, [_shown(group_key.key) for group_key in group_keys], "-")


def resume_lines(stream: str, group: str, committed: Mapping[str, str]) -> list[str]:
    """Return how each query can continue with its checkpoint after its group was deleted. committed: the last committed
    entry of each query. Pure."""
    return [
        f"to let query {query!r} continue with its checkpoint, create the group again: "
        f"{create_command(stream, group, up_to)}"
        for query, up_to in committed.items()
    ]


def plan_delete_consumer(snapshot: GroupSnapshot, consumer: str, consumer_keys: Collection[bytes]) -> Deleted:
    """Return what deleting the consumer would delete. consumer_keys: keys of its query."""
    names = require_consumers(snapshot, consumer)
    held = {info.text: info.pending for info in snapshot.consumers_named(names)}
    marks = {consumer: str(snapshot.marks[consumer].id)} if consumer in snapshot.marks else {}
    keys = [_shown(key) for key in consumer_keys]
    where = str(snapshot.position)
    return Deleted(snapshot.stream, snapshot.group, held, sum(held.values()), 0, keys, where, marks)


def find_consumer_keys(server: Server, stream: str, group: str, consumer: str) -> list[bytes]:
    """Return the keys of a consumer's query beside a stream; none for a consumer that a query has created."""
    if not queries_among([consumer]):
        return []
    keys = [key for _, key in keys_of_consumer(stream, group, consumer)]
    counts = server.execute_all([("EXISTS", key) for key in keys])
    return [key for key, count in zip(keys, counts, strict=True) if count]


def delete_consumer(
    server: Server, snapshot: GroupSnapshot, consumer: str, forget_pending: bool, last: StreamId = MAX_ID
) -> Deleted:
    """Delete the consumer, and return what was deleted. last: an entry above which none is forgotten.

    Its pending entries that were there at the look are acknowledged, page by page; what it has read since stays with
    it, and it is not deleted. Raises GroupInUseError, ServerError, and StreamStateError if entries are pending for it,
    unless forget_pending."""
    names = require_consumers(snapshot, consumer)
    consumer_keys = find_consumer_keys(server, snapshot.stream, snapshot.group, consumer)
    planned = plan_delete_consumer(snapshot, consumer, consumer_keys)
    above = Choice((consumer,), first=last.next(), limit=1) if last < MAX_ID else None
    if above is not None and any(True for _ in pages(server, snapshot, above)):
        raise _has_read(snapshot, consumer)
    if planned.pending and not forget_pending:
        raise StreamStateError(
            f"{planned.pending:,} entries of stream {snapshot.stream!r} are pending for consumer {consumer!r} of group "
            f"{snapshot.group!r}, and would not be delivered again. Hand them over first (rstream groups claim "
            f"{snapshot.stream} --group {snapshot.group} --from {consumer} --to …), or drop them with --forget-pending"
        )
    infos = snapshot.consumers_named(names)
    planned.pending = acknowledge(
        server, snapshot, Choice((consumer,), last=min(last, snapshot.position)), act=True
    ).entries
    planned.consumers = {info.text: planned.pending for info in infos}
    if any(delete_without_entries(server, snapshot.stream, snapshot.group, infos).values()):
        raise _has_read(snapshot, consumer)
    if consumer_keys:
        change(
            server,
            snapshot.stream,
            snapshot.group,
            queries_among([consumer]) or snapshot.queries,
            [("DEL", *consumer_keys)],
        )
    return planned


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
