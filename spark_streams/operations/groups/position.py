"""Positions of a group, and the plans that set one: seek, create, replay.

earliest          before the first entry
latest            after the last entry
5-1               this entry, as in XGROUP SETID: it counts as delivered, entries above it do not
2026-11-20T08:00  before the first entry of this time or later (UTC without a zone); also in milliseconds
1h                the same for a time before now by the server's clock (500ms, 30s, 15m, 2h, 7d)
-100, +100        this many entries below or above the present position

A replay lets a stopped query read a part of its streams again, with its present checkpoint:

    delivered to the group   |--------------------------|
    committed by the query   |------------------|
    replay                         [first … last]        made pending for the query again

The group's position and the checkpoint do not change. The query finds the entries pending below its commit mark, and
reads them with its next batches. Entries above the commit mark may belong to a batch that Spark runs again by itself.
Only the checkpoint shows that, so a replay of such entries is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.base.given_text import duration, moment
from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.admin.groups import (
    DEFAULT_QUERY,
    GroupSnapshot,
    Mark,
    Start,
    count_between,
    count_read,
    fetch_group,
    find_query_keys,
    nth_from,
    require_none_began,
    set_mark,
)
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.operator_commands import seek_command
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_no_such_key
from spark_streams.connector.wire.scan import missing
from spark_streams.connector.wire.xinfo import StreamState, group_named, read_stream_state
from spark_streams.operations.groups.change_plan import UNBOUNDED, AtPosition, Only, Plan, Transaction, UpToLast
from spark_streams.operations.groups.pending_entries import Choice, claim_again, pending_ids, require_pending_list

FORMS = "earliest, latest, an entry's ID, a time (ISO-8601, or 1h: an hour ago), +N or -N entries"


@dataclass(frozen=True)
class GroupTarget:
    """A target: exactly one of the fields after `text` is set."""

    text: str  # as written
    end: str = ""  # earliest or latest
    id: StreamId | None = None  # of an entry
    at_ms: int | None = None  # since the epoch
    ago_ms: int | None = None  # before the server's time
    entries: int | None = None  # from the present position

    @classmethod
    def parse(cls, text: str) -> GroupTarget:
        """Parse a target. Raises ValueError."""
        plain = text.strip()
        if plain.lower() in ("earliest", "latest"):
            return cls(plain, end=plain.lower())
        if re.fullmatch(r"[+-][0-9]{1,18}", plain):
            return cls(plain, entries=int(plain))
        if re.fullmatch(r"[0-9]+-[0-9]+", plain):
            try:
                return cls(plain, id=StreamId.parse(plain))
            except ValueError:
                raise ValueError(f"is none of {FORMS}") from None
        if re.fullmatch(r"[0-9]+ *[a-zA-Z]+", plain):
            return cls(plain, ago_ms=duration(plain))
        try:
            return cls(plain, at_ms=moment(plain))
        except ValueError as error:
            raise ValueError(f"is none of {FORMS}" if "ISO" in str(error) else str(error)) from None

    def within(self, only: Only, stream: str, group: str) -> GroupTarget:
        """Return the position that the dry run has shown for the group, if there is a bound."""
        position = only.id(stream, group)
        return self if position is None else GroupTarget(str(position), id=position)

    def position(
        self, server: Server, stream: str, head: StreamState, now_ms: int, current: StreamId = MIN_ID
    ) -> StreamId:
        """Return the position in a stream. current: of the group. Raises StreamStateError if it would be above the last
        entry that the stream ever had: entries that are added below it would never be delivered."""
        if self.end:
            return head.last if self.end == "latest" else MIN_ID
        if self.entries is not None:
            return nth_from(server, stream, current, self.entries) if self.entries else current
        if self.id is not None:
            if self.id > head.last:
                raise self._above(stream, f"the last entry of stream {stream!r} is {head.last}")
            return self.id
        at_ms = now_ms - (self.ago_ms or 0) if self.at_ms is None else self.at_ms
        if at_ms > now_ms and at_ms > head.last.ms:
            raise self._above(stream, "that is in the future")
        return MIN_ID if at_ms <= 0 else min(StreamId(at_ms, 0).previous(), head.last)

    def _above(self, stream: str, why: str) -> StreamStateError:
        return StreamStateError(
            f"{self.text} is above all entries that stream {stream!r} has had ({why}). Entries that are added below it "
            "would never be delivered. Use latest"
        )


# -- seek --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sought(AtPosition):
    """A group that was, or would be, moved."""

    stream: str
    group: str
    position_before: str
    position: str
    read_again: int  # entries of the stream between the positions
    skipped: int  # the same, if the group is moved forward
    pending_again: int  # entries of read_again that are pending: the consumer that reads them again takes them over
    lag: int | None  # entries that are not delivered yet at the new position; None if the server does not count them


def seek(
    server: Server, snapshot: GroupSnapshot, target: GroupTarget, now_ms: int, only: Only = UNBOUNDED
) -> Plan[Sought]:
    """Set the group (XGROUP SETID) with the number of entries below it (ENTRIESREAD): the server then still knows its
    lag. The commit marks of its queries say that an operator has set it, so they go on there. Raises StreamStateError,
    ServerError."""
    stream, group, head, before = snapshot.stream, snapshot.group, snapshot.head, snapshot.position
    to = target.within(only, stream, group).position(server, stream, head, now_ms, before)
    read = count_read(server, stream, head, to)
    lag = None if head.added is None or read is None else head.added - read
    planned, start = _sought(server, snapshot, before, to, lag), Start(to, read)
    queries = dict.fromkeys([*snapshot.marks, *snapshot.absent])
    marks = {query: Mark.of_seek(to, snapshot.marks.get(query)) for query in queries}
    replies = yield Transaction(
        stream,
        group,
        snapshot.queries,
        [
            ("XINFO", "GROUPS", stream),
            ("XGROUP", "SETID", stream, group, str(to), *start.words()),
            *[set_mark(stream, group, query, mark) for query, mark in marks.items()],
        ],
        of_all=True,
    )
    info = snapshot.info if replies is None else group_named(group, replies[0])
    assert info is not None  # XGROUP SETID has found it
    if info.last_delivered == before:
        return planned
    return _sought(server, snapshot, info.last_delivered, to, lag)  # a consumer has read since


def require_none_began_beside(server: Server, sought: Sequence[GroupSnapshot]) -> None:
    """Raise GroupInUseError if a query has its lease, and had none when these groups were read. Without a consumer yet
    it may begin where its group was. Raises StreamStateError, ServerError."""
    keys = find_query_keys(server)
    for before in sought:
        now = fetch_group(server, before.stream, before.group, keys=keys)
        require_none_began(before.stream, before.group, [name for name in now.holders if name not in before.queries])


def _sought(server: Server, snapshot: GroupSnapshot, before: StreamId, to: StreamId, lag: int | None) -> Sought:
    entries = count_between(server, snapshot.stream, min(before, to), max(before, to))
    pending_again = sum(1 for _ in pending_ids(server, snapshot.stream, snapshot.group, to, before))
    moved = (entries, 0) if to < before else (0, entries)
    return Sought(snapshot.stream, snapshot.group, str(before), str(to), *moved, pending_again, lag)


# -- create ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Created(AtPosition):
    """A group that was, or would be, created."""

    stream: str
    group: str
    position: str
    lag: int | None  # entries that are not delivered to it yet; None if the server does not count them
    makes_stream: bool  # the stream does not exist yet


def create(
    server: Server,
    stream: str,
    group: str,
    target: GroupTarget,
    now_ms: int,
    makes_stream: bool,
    only: Only = UNBOUNDED,
) -> Plan[Created]:
    """Create the group (XGROUP CREATE) with the number of entries below its position, so that its lag is known at once.
    Raises StreamStateError if it exists, StreamMissingError if the stream does not exist and is not to be created."""
    described, groups = server.execute_all([("XINFO", "STREAM", stream), ("XINFO", "GROUPS", stream)], is_no_such_key)
    if is_no_such_key(described) and not makes_stream:
        raise missing(server, stream, "create it, too, with --mkstream")
    head = read_stream_state(server, stream, described)
    if group_named(group, groups) is not None:
        raise StreamStateError(
            f"stream {stream!r} at {server.address} has a group {group!r} already. To move it: rstream groups seek"
        )
    position = target.within(only, stream, group).position(server, stream, head, now_ms)
    # If the stream does not exist yet, it is not known whether the server counts entries.
    read = count_read(server, stream, head, position) if head.exists else None
    lag = 0 if not head.exists else None if head.added is None or read is None else head.added - read
    makes = ["MKSTREAM"] if makes_stream else []
    command = ("XGROUP", "CREATE", stream, group, str(position), *makes, *Start(position, read).words())
    yield Transaction(stream, group, [DEFAULT_QUERY], [command])
    return Created(stream, group, str(position), lag, not head.exists)


# -- replay ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed(UpToLast):
    """Entries of one stream that were, or would be, handed to a query."""

    stream: str
    group: str
    query: str
    after: str  # the range: after < ID ≤ last
    last: str
    entries: int  # handed over
    held: int  # entries of the range that are pending already, and stay with their consumers


@dataclass(frozen=True)
class Span:
    """Range of a stream for a replay."""

    begin: GroupTarget  # if it is an entry's ID, this entry is included
    end: GroupTarget | None  # the last entry; None: the last one that the query has committed
    now_ms: int
    only: Only = UNBOUNDED

    def choice(self, server: Server, snapshot: GroupSnapshot, query: str) -> Choice:
        """Return the entries of one stream. Raises StreamStateError if the query may not have committed all of them."""
        stream, head = snapshot.stream, snapshot.head
        committed = _last_committed(snapshot, query)
        after = (
            self.begin.position(server, stream, head, self.now_ms, committed)
            if self.begin.id is None
            else self.begin.id.previous()
            if self.begin.id > MIN_ID
            else MIN_ID
        )
        if self.end is None:
            last = max(committed, snapshot.position)
        else:
            last = self.end.position(server, stream, head, self.now_ms, committed)
        last = min(last, self.only.id(stream, snapshot.group) or MAX_ID)
        if last > committed and (above := count_between(server, stream, max(after, committed), last)):
            raise StreamStateError(
                f"query {query!r} has committed stream {stream!r} up to {committed}, but {above:,} entries of the "
                "replay are above that. They may belong to a batch that Spark runs again by itself. Start the query, "
                "stop it when it has nothing to read, and repeat this command. Or replay only committed entries (--to "
                f"{committed})"
            )
        return Choice(first=after.next(), last=min(last, committed))


def find_query(snapshot: GroupSnapshot, consumer: str | None) -> str:
    """Return the query for a replay: this consumer, or the only query of the group that has committed entries. Raises
    StreamStateError."""
    queries = sorted(snapshot.marks)
    where = f"group {snapshot.group!r} of stream {snapshot.stream!r}"
    if consumer is None and len(queries) > 1:
        raise StreamStateError(
            f"{len(queries):,} queries have committed entries of {where}. Name one: --consumer {queries[0]!r} (or "
            f"{', '.join(map(repr, queries[1:]))})"
        )
    query = consumer if consumer is not None else queries[0] if queries else None
    if query is None or query not in snapshot.marks:
        who = "no query" if query is None else f"no query {query!r}"
        raise StreamStateError(
            f"{who} has committed entries of {where}, so no query can read them again with its checkpoint. A query "
            "with a new checkpoint begins at the group's position. To set it: rstream groups seek"
        )
    return query


def replay(server: Server, snapshot: GroupSnapshot, query: str, span: Span) -> Plan[Replayed]:
    """Hand the entries to the stopped query, one page per transaction. Raises StreamStateError, ServerError."""
    choice = span.choice(server, snapshot, query)
    entries = yield from claim_again(server, snapshot, query, choice)
    after = choice.first.previous() if choice.first > MIN_ID else MIN_ID
    in_range = count_between(server, snapshot.stream, after, choice.last) if after < choice.last else 0
    return Replayed(snapshot.stream, snapshot.group, query, str(after), str(choice.last), entries, in_range - entries)


def next_steps(replayed: Replayed) -> list[str]:
    """Return what the query will do, and the alternative to this command. Pure."""
    seek = seek_command(replayed.stream, replayed.group, replayed.after)
    return [
        f"query {replayed.query!r}, started with its present checkpoint, reads these entries again with its next "
        "batches, and then continues; the position of its group does not change",
        "their rows are written a second time: a plain table or stream has them twice, and a sum or count over them is "
        "too high. A table that is merged by a key of the rows, or by _stream and _id, has them once",
        f"alternative: with a new checkpoint, the query reads all entries above {replayed.after} again ({seek}, "
        "instead of this command)",
    ]


def _last_committed(snapshot: GroupSnapshot, query: str) -> StreamId:
    """Return the last committed entry. Raises StreamStateError if the query has no pending list."""
    mark = snapshot.marks[query]
    instead = "Set its group back with rstream groups seek, and start the query with a new checkpoint"
    require_pending_list(snapshot, query, mark, instead)
    return mark.id
