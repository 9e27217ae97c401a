"""Deleting a group (XGROUP DESTROY) or one consumer of it (XGROUP DELCONSUMER), and all that is kept for it.

What stands in the stream's slot goes in the transaction of the group itself. What is elsewhere (`begun`) goes before
that: whoever is killed between the two finds the group still there, and deletes it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.errors import StreamStateError
from spark_streams.groups.group_keys import Kept
from spark_streams.groups.group_snapshot import DEFAULT_QUERY, Standing, queries_among, query_of
from spark_streams.groups.guard import change
from spark_streams.model.keys import keys_of_consumer
from spark_streams.model.operator_commands import create_command
from spark_streams.wire.connection.connection import Argument, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import consumers_in, group_named


@dataclass
class Deleted:
    """What was, or would be, deleted on one stream. consumers: each with the pending entries that were forgotten with
    it; lag: entries that the group had yet to be given (None: the server cannot tell; of a consumer: 0); keys: that
    were kept for it, by name; position: where the group stood; committed: up to where each query had committed."""

    stream: str
    group: str
    consumers: dict[str, int]
    pending: int
    lag: int | None
    keys: list[str]
    position: str
    committed: dict[str, str] = field(default_factory=dict)


def consumers_with(standing: Standing, consumer: str) -> list[str]:
    """A consumer, and those that it has made as a query. Raises StreamStateError where it is not there."""
    found = [one.text for one in standing.consumers if consumer in (one.text, query_of(one.text))]
    if not found:
        raise StreamStateError(
            f"group {standing.group!r} of stream {standing.stream!r} has no consumer {consumer!r}; rstream pending "
            f"{standing.stream} lists them"
        )
    return found


def consumers_of(server: Server, stream: str, group: str, consumer: str) -> list[str]:
    """The same, empty if there is none, no group or no stream."""
    [reply] = server.pipeline([("XINFO", "CONSUMERS", stream, group)])
    names = [] if isinstance(reply, ReplyError) else [one.text for one in consumers_in(reply)]
    return [name for name in names if consumer in (name, query_of(name))]


def plan_delete_group(standing: Standing, kept: Sequence[Kept]) -> Deleted:
    """What deleting the group would forget."""
    marks = {name: str(mark.up_to) for name, mark in standing.marks.items()}
    consumers = {one.text: one.pending for one in standing.consumers}
    return Deleted(
        standing.stream,
        standing.group,
        consumers,
        standing.info.pending,
        standing.info.lag,
        [_shown(one.key) for one in kept],
        str(standing.position),
        marks,
    )


def delete_group(server: Server, standing: Standing, kept: Sequence[Kept]) -> Deleted:
    """Delete it; what that has forgotten. kept: of this group and stream. Raises GroupInUseError, ServerError."""
    stream, group = standing.stream, standing.group
    here, away = _by_place(kept)
    known = [key for name in standing.queries for _, key in keys_of_consumer(stream, group, name)]
    keys = dict.fromkeys([*here, *known])
    queries = list(dict.fromkeys([*standing.queries, *queries_among([one.consumer for one in kept if one.consumer])]))
    asked: list[Sequence[Argument]] = [("XINFO", "GROUPS", stream), ("XINFO", "CONSUMERS", stream, group)]
    if away:
        change(server, stream, group, queries, asked)  # nobody lives there
        server.execute_all([("DEL", key) for key in away])
    commands: list[Sequence[Argument]] = [*asked, ("XGROUP", "DESTROY", stream, group), ("DEL", *keys)]
    told, consumers, *_ = change(server, stream, group, queries, commands)
    info = group_named(group, told) or standing.info
    last = Standing(
        stream, group, standing.head, info, tuple(consumers_in(consumers)), standing.marks, standing.holders
    )
    return plan_delete_group(last, kept)


def forget_kept(server: Server, stream: str, group: str, kept: Sequence[Kept]) -> Deleted:
    """Delete keys that are left of a group which is gone. Raises GroupInUseError where a query holds a lease there."""
    here, away = _by_place(kept)
    queries = queries_among([one.consumer for one in kept if one.consumer], DEFAULT_QUERY)
    change(server, stream, group, queries, [("DEL", *here)] if here else [])
    server.execute_all([("DEL", key) for key in away])
    return plan_forget(stream, group, kept)


def plan_forget(stream: str, group: str, kept: Sequence[Kept]) -> Deleted:
    """What that would delete."""
    return Deleted(stream, group, {}, 0, 0, [_shown(one.key) for one in kept], "-")


def ways_back(stream: str, group: str, committed: Mapping[str, str]) -> list[str]:
    """How each query goes on with its checkpoint when its group was deleted. committed: up to where it had. Pure."""
    return [
        f"query {query!r}, started with its checkpoint, goes on as if nothing had happened after: "
        f"{create_command(stream, group, up_to)}"
        for query, up_to in committed.items()
    ]


def plan_delete_consumer(standing: Standing, consumer: str, there: Collection[bytes]) -> Deleted:
    """What deleting the consumer would forget. there: keys that are kept for it."""
    names = consumers_with(standing, consumer)
    held = {one.text: one.pending for one in standing.of(names)}
    query = query_of(consumer)
    marks = {query: str(standing.marks[query].up_to)} if query in standing.marks and query == consumer else {}
    keys = [_shown(key) for key in there]
    where = str(standing.position)
    return Deleted(standing.stream, standing.group, held, sum(held.values()), 0, keys, where, marks)


def kept_for(server: Server, stream: str, group: str, consumer: str) -> list[bytes]:
    """Which keys are kept for a consumer beside a stream; none for one that a query has made."""
    if not queries_among([consumer]) or query_of(consumer) != consumer:
        return []
    keys = [key for _, key in keys_of_consumer(stream, group, consumer)]
    there = server.execute_all([("EXISTS", key) for key in keys])
    return [key for key, count in zip(keys, there, strict=True) if count]


def delete_consumer(server: Server, standing: Standing, consumer: str, forget_pending: bool) -> Deleted:
    """Delete it; what that has forgotten. Raises GroupInUseError, StreamStateError where entries are pending for it and
    that is not meant, ServerError."""
    names = consumers_with(standing, consumer)
    there = kept_for(server, standing.stream, standing.group, consumer)
    planned = plan_delete_consumer(standing, consumer, there)
    if planned.pending and not forget_pending:
        raise StreamStateError(
            f"{planned.pending:,} entries of stream {standing.stream!r} are pending for consumer {consumer!r} of group "
            f"{standing.group!r}, and nobody would be given them again: hand them over first (rstream groups claim "
            f"{standing.stream} --group {standing.group} --from {consumer} --to …), or drop them with --forget-pending"
        )
    raw = [one.name for one in standing.of(names)]
    commands = [("XGROUP", "DELCONSUMER", standing.stream, standing.group, name) for name in raw]
    gone: list[Sequence[Argument]] = [("DEL", *there)] if there else []
    replies = change(
        server, standing.stream, standing.group, queries_among([consumer]) or standing.queries, [*commands, *gone]
    )
    planned.consumers = dict(zip(names, replies, strict=False))
    planned.pending = sum(planned.consumers.values())
    return planned


def _by_place(kept: Sequence[Kept]) -> tuple[list[bytes], list[bytes]]:
    """Keys in the stream's slot, and those that may be in another one."""
    away = [one.key for one in kept if one.kind == "begun"]
    return [one.key for one in kept if one.key not in away], away


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
