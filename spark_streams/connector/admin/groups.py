"""Groups: a snapshot of one, what it has to read, and one guarded change of it.

A change of a group is only made while none of its queries is running:

    WATCH the leases   GET the leases   → a query is running: refuse
    MULTI   the change   EXEC           → a lease was taken or has expired meanwhile: try again

A query takes its lease before it reads the state of its group. So it reads the changed state, or the change is refused.
A change of the whole group also reads its consumers, before and in the transaction: a query may have come that the
snapshot lacks. One that comes between both cannot be refused any more. The error then says that the change is made.

The keys that queries keep for a group beside a stream are those of queries whose consumers are in the group, of those
that have a commit mark or a first position, and of a query with the default consumer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote_to_bytes

from spark_streams.base.ids import StreamId
from spark_streams.base.pattern import escape
from spark_streams.connector.deadletter.waiting_entries import WaitingEntries, waiting_entries, waiting_of
from spark_streams.connector.errors import GroupInUseError, StreamMissingError, StreamStateError
from spark_streams.connector.keys import PREFIX, key_beside, key_of_query, keys_of_consumer, keys_of_group
from spark_streams.connector.operator_commands import command_on
from spark_streams.connector.options.parsers import MOST_DELAYS
from spark_streams.connector.options.table import SOURCE
from spark_streams.connector.retention import (
    GroupName,
    Readers,
    ReadingGroup,
    holding,
    knows_acked,
    record_forgotten,
)
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.counting import (
    count_between,
    count_missing,
    count_read,
    ids_between,
    nth_from,
    undelivered,
)
from spark_streams.connector.source.group.recovery import Start
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.wire.connection import Argument, Reply, ReplyError, Server
from spark_streams.connector.wire.lease import Processes, are_held, describe
from spark_streams.connector.wire.replies import is_no_group, is_no_such_key, is_not_permitted, milliseconds, transact
from spark_streams.connector.wire.scan import hint_of_names, matching_streams, matching_strings
from spark_streams.connector.wire.xinfo import (
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
    stream: str
    group: str
    head: StreamState  # of the stream
    info: GroupInfo
    consumers: tuple[ConsumerInfo, ...]
    marks: Mapping[str, Mark]  # commit marks of its queries
    holders: Mapping[str, str]  # the running queries, each with ` (process 1 on host)`
    absent: tuple[str, ...] = ()  # queries that the operator has named: their consumers may be missing from the group
    of_keys: tuple[str, ...] = ()  # queries of which keys were found: likewise

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
        """All names that a query in the group may have: of its consumers, the default, `absent` and `of_keys`."""
        return queries_among([consumer.text for consumer in self.consumers], DEFAULT_QUERY, *self.absent, *self.of_keys)

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
    server: Server,
    stream: str,
    group: str,
    absent: Sequence[str] = (),
    keys: Sequence[bytes] = (),
) -> GroupSnapshot:
    """Fetch the state of a group. absent: see GroupSnapshot; keys: by `find_query_keys`. Raises StreamStateError if the
    stream or the group does not exist, ServerError."""
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
            f"no group {group!r} of stream {stream!r} at {server.address}. To list its groups: "
            f"{command_on(stream, 'groups list')}"
        )
    infos = tuple(consumers_in(consumers))
    of_keys = tuple(_queries_of_keys(keys, stream, group))
    snapshot = GroupSnapshot(stream, group, state, info, infos, {}, {}, tuple(absent), of_keys)
    marks, holders = _fetch_marks(server, stream, group, snapshot.queries)
    return replace(snapshot, marks=marks, holders=holders)


def groups_of(server: Server, streams: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return each stream with each of its groups."""
    replies = server.execute_all([("XINFO", "GROUPS", stream) for stream in streams])
    groups = zip(streams, map(all_groups_in, replies), strict=True)
    return [(stream, group.name) for stream, of_stream in groups for group in of_stream]


def find_running(server: Server, queries: Sequence[str], leases: Sequence[bytes | None]) -> dict[str, str]:
    """Return the queries that are running by their leases, as far as this machine can tell, with their holders."""
    held = are_held(server, leases, Processes())
    return {query: describe(value) for query, value, lives in zip(queries, leases, held, strict=True) if lives}


def _fetch_marks(
    server: Server, stream: str, group: str, names: Sequence[str]
) -> tuple[dict[str, Mark], dict[str, str]]:
    commands = [("GET", key_of(stream, group, name)) for key_of in (lease_key, committed_key) for name in names]
    replies = server.execute_all(commands)
    marks = {name: Mark.parse(value) for name, value in zip(names, replies[len(names) :], strict=True)}
    known_marks = {name: mark for name, mark in marks.items() if mark is not None}
    return known_marks, find_running(server, names, replies[: len(names)])


def fetch_time(server: Server, fallback: int) -> int:
    """Return the server's time in milliseconds since the epoch; the fallback if the user may not read it."""
    [reply] = server.execute_all([("TIME",)], is_not_permitted)
    return fallback if is_not_permitted(reply) else milliseconds(reply)


def change(
    server: Server,
    stream: str,
    group: str,
    queries: Sequence[str],
    commands: Sequence[Sequence[Argument]],
    of_all: bool = False,
) -> list[Reply]:
    """Run commands on keys of the stream's slot as one transaction, while none of these queries is running. Return
    their replies. of_all: they change the whole group, so no other query may be running either. Raises GroupInUseError,
    and the named error of the first error reply."""
    known, seen = [*queries], [("XINFO", "CONSUMERS", stream, group)] if of_all else []
    while True:
        keys = [lease_key(stream, group, query) for query in known]
        watch: list[Sequence[Argument]] = [("WATCH", *keys)] if keys else []
        asked = [*watch, *[("GET", key) for key in keys], *seen]
        answers = server.execute_all(asked, is_no_group, is_no_such_key)[len(watch) :]
        held = find_running(server, known, answers[: len(keys)])
        new = _unknown(known, answers[len(keys) :])
        if held or new:
            server.execute("UNWATCH")
        if held:
            raise GroupInUseError(
                "; ".join(running_message(stream, group, query, holder) for query, holder in held.items())
            )
        known += new
        replies = None if new else transact(server, [*seen, *commands])
        if replies is None:
            continue
        came = _unknown(known, replies[: len(seen)])
        leases = server.execute_all([("GET", lease_key(stream, group, query)) for query in came])
        require_none_began(stream, group, find_running(server, came, leases))
        return replies[len(seen) :]


def require_none_began(stream: str, group: str, running: Collection[str]) -> None:
    """Raise GroupInUseError if there are queries that came while the group was changed."""
    if running:
        raise GroupInUseError(
            f"query {', '.join(map(repr, running))} has begun to run in group {group!r} of stream {stream!r} while "
            "the group was changed, and may have read its old state. The change is made. Stop the query, and "
            "repeat the command"
        )


def _unknown(known: Sequence[str], replies: Sequence[Reply]) -> list[str]:
    """Return the possible queries among the consumers in these replies that are not known."""
    infos = [info.text for reply in replies if not isinstance(reply, ReplyError) for info in consumers_in(reply)]
    return [name for name in queries_among(infos) if name not in known]


# -- commit marks and leases of queries -------------------------------------------------------------------------------


def fetch_mark(server: Server, stream: str, group: str, query: str) -> Mark | None:
    """Return the commit mark of a query; None if it has none."""
    return Mark.parse(server.execute("GET", committed_key(stream, group, query)))


def set_mark(stream: str, group: str, query: str, mark: Mark) -> Sequence[Argument]:
    """Return the command that sets the commit mark of a query."""
    return "SET", committed_key(stream, group, query), str(mark)


def fetch_marks_of_stream(
    server: Server, stream: str | bytes
) -> tuple[dict[bytes, tuple[tuple[str, Mark], ...]], bool]:
    """Return (by group, consumer and commit mark of each query of this stream; whether the user may not read them)."""
    prefix = key_beside(stream, "committed") + b":"
    pattern = f"{escape(prefix.decode('utf-8', 'surrogateescape'))}*"
    keys = matching_strings(server, pattern.encode("utf-8", "surrogateescape"))
    marks: dict[bytes, tuple[tuple[str, Mark], ...]] = {}
    refused = False
    for key, value in zip(keys, server.pipeline([("GET", key) for key in keys]), strict=True):
        mark = Mark.parse(value) if isinstance(value, bytes) else None
        names = key.removeprefix(prefix).split(b":")  # those of a stream with the same hash tag have more parts
        refused = refused or is_not_permitted(value)
        if mark is not None and len(names) == 2:
            group, consumer = map(unquote_to_bytes, names)
            marks[group] = (*marks.get(group, ()), (consumer.decode("utf-8", "surrogateescape"), mark))
    return marks, refused


def find_read_without_trace(server: Server, groups: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of the groups, (stream, name) each, to which a query without a pending list has committed: it leaves
    no other trace."""
    keys = matching_strings(server, f"{PREFIX}committed:*") if groups else []
    values = server.execute_all([("GET", key) for key in keys])
    marks = [(key, Mark.parse(value)) for key, value in zip(keys, values, strict=True)]
    return _groups_of_keys(
        [key for key, mark in marks if mark is not None and not mark.has_pending_list], "committed", groups
    )


def find_with_running_query(server: Server, groups: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of the groups, (stream, name) each, in which a query holds a lease."""
    beside = tuple(key_beside(stream, "lease", group) + b":" for stream, group in groups)
    found = matching_strings(server, f"{PREFIX}lease:*") if groups else []
    leases = [key for key in found if key.startswith(beside)]
    held = are_held(server, server.execute_all([("GET", key) for key in leases]), Processes())
    return _groups_of_keys([key for key, is_held in zip(leases, held, strict=True) if is_held], "lease", groups)


def _groups_of_keys(keys: Sequence[bytes], kind: str, groups: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the groups that have one of these keys beside their stream."""
    beside = {(stream, group): key_beside(stream, kind, group) + b":" for stream, group in groups}
    return {group for group, beginning in beside.items() if any(key.startswith(beginning) for key in keys)}


# -- keys of a group --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupKey:
    key: bytes
    kind: str  # lease, committed …
    consumer: str = ""  # empty: of the group as a whole
    stream: str = ""  # beside which it is; empty: none


def find_query_keys(server: Server) -> list[bytes]:
    """Return the keys that tell of a query whose consumer is missing from its group: it was deleted, or the query has
    read nothing yet. Each query has `committed` or `first`, and `lease` while it runs. Raises ServerError."""
    return matching_strings(server, f"{PREFIX}[cfl]*")


def find_group_keys(
    server: Server, streams_of: Mapping[str, Iterable[str]], of_queries: Sequence[bytes] | None = None
) -> dict[str, list[GroupKey]]:
    """Return the keys of groups on these streams, and `begun`, unless other streams need it. of_queries: by
    `find_query_keys`. Raises ServerError."""
    pairs = [(group, stream) for group, streams in streams_of.items() for stream in streams]
    commands = [("XINFO", "CONSUMERS", stream, group) for group, stream in pairs]
    of_queries = find_query_keys(server) if of_queries is None else of_queries
    possible: dict[str, dict[bytes, GroupKey]] = {group: {} for group in streams_of}
    replies = server.execute_all(commands, is_no_group, is_no_such_key)
    for (group, stream), reply in zip(pairs, replies, strict=True):
        consumers = [] if isinstance(reply, ReplyError) else [info.text for info in consumers_in(reply)]
        of_group = [GroupKey(key, kind, stream=stream) for kind, key in keys_of_group(stream, group, MOST_DELAYS)]
        names = _queries_of_keys(of_queries, stream, group)
        for query in queries_among(consumers, DEFAULT_QUERY, *names):
            of_group += [GroupKey(key, kind, query, stream) for kind, key in keys_of_consumer(stream, group, query)]
            of_group.append(GroupKey(key_of_query("begun", group, query), "begun", query))
        possible[group] |= {group_key.key: group_key for group_key in of_group}
    keys = [key for by_key in possible.values() for key in by_key]
    existing = {key for key, n in zip(keys, server.execute_all([("EXISTS", key) for key in keys]), strict=True) if n}
    return {
        group: [
            group_key
            for group_key in by_key.values()
            if group_key.key in existing
            and not (group_key.kind == "begun" and _is_needed(server, group_key, group, streams_of[group]))
        ]
        for group, by_key in possible.items()
    }


def _queries_of_keys(keys: Sequence[bytes], stream: str, group: str) -> list[str]:
    found = []
    for beside in (key_beside(stream, kind, group) + b":" for kind in ("committed", "first", "lease")):
        names = [key.removeprefix(beside) for key in keys if key.startswith(beside)]
        # With more parts, it is the key of a stream with the same hash tag.
        found += [unquote_to_bytes(name).decode("utf-8", "surrogateescape") for name in names if b":" not in name]
    return [*dict.fromkeys(found)]


def _is_needed(server: Server, begun: GroupKey, group: str, streams: Iterable[str]) -> bool:
    """Whether a query over a pattern without a checkpoint yet has a first position on other streams of the pattern.
    `begun` holds the pattern."""
    pattern = server.execute("GET", begun.key) or b""
    other_streams = matching_streams(server, pattern.decode("utf-8", "surrogateescape"), streams)
    firsts = [("EXISTS", key_beside(stream, "first", group, begun.consumer)) for stream in other_streams]
    return any(server.execute_all(firsts))


def find_keys_to_delete(
    server: Server, streams_of: Mapping[str, Sequence[str]], of_queries: Sequence[bytes] | None = None
) -> tuple[dict[tuple[str, str], list[GroupKey]], dict[bytes, int]]:
    """Return the keys that go with each (stream, group), and those that stay: streams in which entries wait, with the
    number of these. `begun` goes with the last stream. of_queries: by `find_query_keys`. Raises ServerError."""
    found = find_group_keys(server, streams_of, of_queries) if streams_of else {}
    waiting = _count_waiting(server, [group_key for group_keys in found.values() for group_key in group_keys])
    keys = {
        (stream, group): [one for one in found[group] if one.stream == stream and one.key not in waiting]
        for group, streams in streams_of.items()
        for stream in streams
    }
    for group, streams in streams_of.items():
        for stream in streams[-1:]:
            keys[stream, group] += [one for one in found[group] if one.kind == "begun"]
    return keys, waiting


def _count_waiting(server: Server, group_keys: Iterable[GroupKey]) -> dict[bytes, int]:
    """Return the keys that are streams with entries waiting for a retry, and the number of entries."""
    streams = [group_key.key for group_key in group_keys if group_key.kind in ("retry", "returned")]
    lengths = zip(streams, server.execute_all([("XLEN", key) for key in streams]), strict=True)
    return {key: length for key, length in lengths if length}


def waiting_lines(waiting: Mapping[bytes, int]) -> list[str]:
    """Return a line for each stream with entries of a deleted group that wait for a retry or are returned. Pure."""
    return [
        f"{entries:,} entries of the group in {stream!r} wait for a retry, and are not deleted. A query with "
        "retryDelay and a group of the same name reads them. To show them: rstream dead list"
        for stream, entries in ((key.decode("utf-8", "backslashreplace"), count) for key, count in waiting.items())
    ]
