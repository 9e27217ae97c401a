"""A group of one stream as an operator finds it: where it stands, who its consumers are, which of them are queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.errors import StreamStateError
from spark_streams.model.commit_mark import Mark, committed_key
from spark_streams.model.ids import StreamId
from spark_streams.options.table import SOURCE
from spark_streams.source.group.consumer_lease import lease_key
from spark_streams.source.membership import owner_of
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.lease import Processes, are_held, describe
from spark_streams.wire.replies.replies import milliseconds
from spark_streams.wire.replies.reply_errors import is_no_group, is_no_such_key
from spark_streams.wire.replies.xinfo import (
    ConsumerInfo,
    GroupInfo,
    StreamState,
    consumers_in,
    group_named,
    read_stream_state,
)

ACTIVE_MS = 60_000  # a consumer that has asked for something since then may be at work
DEFAULT_QUERY = str(next(option.default for option in SOURCE if option.name == "consumer"))  # who names no consumer


def query_of(consumer: str) -> str:
    """The query that a consumer is, or was made by."""
    return owner_of(consumer)


def queries_among(consumers: Iterable[str], *others: str) -> list[str]:
    """The names that queries behind these consumers may have: bytes that are no text are none."""
    names = dict.fromkeys([*others, *map(query_of, consumers)])
    return [name for name in names if not any("\ud800" <= letter <= "\udfff" for letter in name)]


@dataclass(frozen=True)
class Standing:
    """head: the stream; info: the group; consumers: its own; marks: up to where queries in it have committed;
    holders: the queries that live, each with ` (process 1 on host)`."""

    stream: str
    group: str
    head: StreamState
    info: GroupInfo
    consumers: tuple[ConsumerInfo, ...]
    marks: Mapping[str, Mark]
    holders: Mapping[str, str]

    @property
    def position(self) -> StreamId:
        """Where the group stands."""
        return self.info.last_delivered

    @property
    def released(self) -> bool:
        """Whether more entries are pending than the consumers hold: some were released (XNACK)."""
        return self.info.pending > sum(one.pending for one in self.consumers)

    @property
    def queries(self) -> list[str]:
        """Every name that a query in the group may have: its consumers', and the one that is nobody's choice."""
        return queries_among([one.text for one in self.consumers], DEFAULT_QUERY)

    def of(self, consumers: Collection[str] | None) -> list[ConsumerInfo]:
        """Those consumers, or all."""
        return [one for one in self.consumers if consumers is None or one.text in consumers]

    def in_use(self, consumers: Collection[str] | None, even_active: bool) -> list[str]:
        """Why these consumers (None: the whole group) are not to be touched, if so."""
        names = set(self.holders) if consumers is None else {query_of(one) for one in consumers} & {*self.holders}
        why = [lives(self.stream, self.group, name, self.holders[name]) for name in sorted(names)]
        for one in [] if even_active else self.of(consumers):
            # A query says by its lease whether it lives; of other clients only this is known.
            if one.idle < ACTIVE_MS and query_of(one.text) not in {*self.marks, *self.holders}:
                why.append(
                    f"consumer {one.text!r} of group {self.group!r} of stream {self.stream!r} was active "
                    f"{one.idle / 1000:.1f} s ago: whether it lives only its owner knows; stop it, or say --even-active"
                )
        return why


def lives(stream: str, group: str, query: str, holder: str) -> str:
    """The line for a query that lives. holder: ` (process 1 on host)`, or empty."""
    return (
        f"a query is running as consumer {query!r} of group {group!r} of stream {stream!r}{holder}: stop it first "
        "(where it was killed on another machine its lease ends after ten seconds)"
    )


def look(server: Server, stream: str, group: str, processes: Processes | None = None) -> Standing:
    """Raises StreamStateError where there is no such stream or group, ServerError."""
    head, groups, consumers = server.pipeline(
        [("XINFO", "STREAM", stream), ("XINFO", "GROUPS", stream), ("XINFO", "CONSUMERS", stream, group)]
    )
    if is_no_such_key(head):
        raise StreamStateError(f"no stream {stream!r} at {server.address}; rstream streams lists what is there")
    state = read_stream_state(server, stream, head)
    if isinstance(groups, ReplyError):
        raise server.error_of(groups, ("XINFO", "GROUPS", stream))
    info = group_named(group, groups)
    if info is None or is_no_group(consumers):
        raise StreamStateError(
            f"no group {group!r} of stream {stream!r} at {server.address}; rstream groups {stream} lists its groups"
        )
    if isinstance(consumers, ReplyError):
        raise server.error_of(consumers, ("XINFO", "CONSUMERS", stream, group))
    known = tuple(consumers_in(consumers))
    found = Standing(stream, group, state, info, known, {}, {})
    marks, holders = _queries(server, stream, group, found.queries, processes or Processes())
    return Standing(stream, group, state, info, known, marks, holders)


def living(
    server: Server, queries: Sequence[str], leases: Sequence[bytes | None], processes: Processes
) -> dict[str, str]:
    """Which of these queries live, by their leases, as far as can be seen from here; with who holds them."""
    held = are_held(server, leases, processes)
    return {query: describe(value) for query, value, lives in zip(queries, leases, held, strict=True) if lives}


def _queries(
    server: Server, stream: str, group: str, names: Sequence[str], processes: Processes
) -> tuple[dict[str, Mark], dict[str, str]]:
    asked = [("GET", key_of(stream, group, name)) for key_of in (lease_key, committed_key) for name in names]
    replies = server.execute_all(asked)
    marks = {name: Mark.parse(value) for name, value in zip(names, replies[len(names) :], strict=True)}
    told = {name: mark for name, mark in marks.items() if mark is not None}
    return told, living(server, names, replies[: len(names)], processes)


def now_of(server: Server, fallback: int) -> int:
    """The server's time in milliseconds since the epoch; the fallback where it may not be asked."""
    [reply] = server.pipeline([("TIME",)])
    return fallback if isinstance(reply, ReplyError) else milliseconds(reply)
