"""Snapshot of a group of one stream: its position, its consumers, and which of these are queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import StreamMissingError, StreamStateError
from spark_streams.connector.options.table import SOURCE
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.lease import Processes, are_held, describe
from spark_streams.connector.wire.replies.replies import is_no_group, is_no_such_key, is_not_permitted, milliseconds
from spark_streams.connector.wire.replies.scan import hint_of_names
from spark_streams.connector.wire.replies.xinfo import (
    ConsumerInfo,
    GroupInfo,
    StreamState,
    all_groups_in,
    consumers_in,
    group_named,
    read_stream_state,
)

ACTIVE_MS = 60_000  # a consumer that has sent a command within this time may be running
DEFAULT_QUERY = str(next(option.default for option in SOURCE if option.name == "consumer"))  # without option consumer


def queries_among(consumers: Iterable[str], *others: str) -> list[str]:
    """Return the possible query names of these consumers, and the others: bytes that are not text are not names."""
    names = dict.fromkeys([*others, *consumers])
    return [name for name in names if not any("\ud800" <= character <= "\udfff" for character in name)]


@dataclass(frozen=True)
class GroupSnapshot:
    """State of a group. head: of the stream; info: of the group; marks: commit marks of its queries; holders: the
    running queries, each with ` (process 1 on host)`; absent: queries that the operator has named, whose consumers may
    be missing from the group."""

    stream: str
    group: str
    head: StreamState
    info: GroupInfo
    consumers: tuple[ConsumerInfo, ...]
    marks: Mapping[str, Mark]
    holders: Mapping[str, str]
    absent: tuple[str, ...] = ()

    @property
    def position(self) -> StreamId:
        """The last ID that was delivered to the group."""
        return self.info.last_delivered

    @property
    def shows_attempts(self) -> bool:
        """Whether the idle times also count from a read that found nothing (Redis 7.2)."""
        return all(consumer.counts_attempts for consumer in self.consumers)

    @property
    def released(self) -> bool:
        """Whether released entries are pending (XNACK): more entries than the consumers hold."""
        return self.info.pending > sum(consumer.pending for consumer in self.consumers)

    @property
    def queries(self) -> list[str]:
        """All names that a query in the group may have: those of its consumers, the default, and `absent`."""
        return queries_among([consumer.text for consumer in self.consumers], DEFAULT_QUERY, *self.absent)

    def consumers_named(self, consumers: Collection[str] | None) -> list[ConsumerInfo]:
        """Return the consumers with these names; all if None."""
        return [consumer for consumer in self.consumers if consumers is None or consumer.text in consumers]

    def in_use(self, consumers: Collection[str] | None, even_active: bool) -> list[str]:
        """Return why these consumers (None: the whole group) must not be changed; empty if they may be."""
        names = set(self.holders) if consumers is None else {*consumers} & {*self.holders}
        why = [running_message(self.stream, self.group, name, self.holders[name]) for name in sorted(names)]
        for consumer in [] if even_active else self.consumers_named(consumers):
            # A query's lease shows whether it is running. For other clients, only the idle time is known.
            if consumer.idle < ACTIVE_MS and consumer.text not in {*self.marks, *self.holders}:
                why.append(
                    f"consumer {consumer.text!r} of group {self.group!r} of stream {self.stream!r} was active "
                    f"{consumer.idle / 1000:.1f} s ago, and may still be running. Stop it, or set --even-active"
                )
        return why


def running_message(stream: str, group: str, query: str, holder: str) -> str:
    """Return the message about a running query. holder: ` (process 1 on host)`, or empty."""
    return (
        f"a query is running as consumer {query!r} of group {group!r} of stream {stream!r}{holder}. Stop it first (if "
        "it was killed on another machine, its lease ends after ten seconds)"
    )


def fetch_group(
    server: Server, stream: str, group: str, processes: Processes | None = None, absent: Sequence[str] = ()
) -> GroupSnapshot:
    """Fetch the state of a group. absent: see GroupSnapshot. Raises StreamStateError if the stream or the group does
    not exist, ServerError."""
    head, groups, consumers = server.execute_all(
        [("XINFO", "STREAM", stream), ("XINFO", "GROUPS", stream), ("XINFO", "CONSUMERS", stream, group)],
        is_no_such_key,
        is_no_group,
    )
    if is_no_such_key(head):
        raise StreamMissingError(f"no stream {stream!r} at {server.address}; {hint_of_names(server, [stream])}")
    state = read_stream_state(server, stream, head)
    info = group_named(group, groups)
    if info is None or is_no_group(consumers) or is_no_such_key(consumers):
        raise StreamStateError(
            f"no group {group!r} of stream {stream!r} at {server.address}. To list its groups: rstream groups {stream}"
        )
    infos = tuple(consumers_in(consumers))
    snapshot = GroupSnapshot(stream, group, state, info, infos, {}, {}, tuple(absent))
    marks, holders = _fetch_marks(server, stream, group, snapshot.queries, processes or Processes())
    return replace(snapshot, marks=marks, holders=holders)


def groups_of(server: Server, streams: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return each stream with each of its groups."""
    replies = server.execute_all([("XINFO", "GROUPS", stream) for stream in streams])
    groups = zip(streams, map(all_groups_in, replies), strict=True)
    return [(stream, group.name) for stream, of_stream in groups for group in of_stream]


def find_running(
    server: Server, queries: Sequence[str], leases: Sequence[bytes | None], processes: Processes
) -> dict[str, str]:
    """Return the queries that are running by their leases, as far as this machine can tell, with their holders."""
    held = are_held(server, leases, processes)
    return {query: describe(value) for query, value, lives in zip(queries, leases, held, strict=True) if lives}


def _fetch_marks(
    server: Server, stream: str, group: str, names: Sequence[str], processes: Processes
) -> tuple[dict[str, Mark], dict[str, str]]:
    commands = [("GET", key_of(stream, group, name)) for key_of in (lease_key, committed_key) for name in names]
    replies = server.execute_all(commands)
    marks = {name: Mark.parse(value) for name, value in zip(names, replies[len(names) :], strict=True)}
    known_marks = {name: mark for name, mark in marks.items() if mark is not None}
    return known_marks, find_running(server, names, replies[: len(names)], processes)


def fetch_time(server: Server, fallback: int) -> int:
    """Return the server's time in milliseconds since the epoch; the fallback if the user may not read it."""
    [reply] = server.execute_all([("TIME",)], is_not_permitted)
    return fallback if is_not_permitted(reply) else milliseconds(reply)
