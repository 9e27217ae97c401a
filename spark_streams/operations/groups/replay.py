"""Replay: a stopped query reads a part of its streams again, with its present checkpoint.

    delivered to the group   |--------------------------|
    committed by the query   |------------------|
    replay                         [first … last]        made pending for the query again (groups.claim: claim_again)

The group's position and the checkpoint do not change. The query finds the entries pending below its commit mark, and
reads them with its next batches. Entries above the commit mark may belong to a batch that Spark runs again by itself.
Only the checkpoint shows that, so a replay of such entries is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.admin.groups import GroupSnapshot, count_between
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.operator_commands import seek_command
from spark_streams.connector.wire.connection.server import Server
from spark_streams.operations.groups.claim import claim_again
from spark_streams.operations.groups.pending_selection import Choice
from spark_streams.operations.groups.target import Target


@dataclass(frozen=True)
class Replayed:
    """Entries of one stream that were, or would be, handed to a query. after, last: the range after < ID ≤ last;
    entries: handed over; held: entries of the range that are pending already, and stay with their consumers."""

    stream: str
    group: str
    query: str
    after: str
    last: str
    entries: int
    held: int


@dataclass(frozen=True)
class Span:
    """Range of a stream that is to be read again. begin: if it is an entry's ID, this entry is included; end: the last
    entry, None: the last one that the query has committed; most: an entry above which nothing is read again."""

    begin: Target
    end: Target | None
    now_ms: int
    most: StreamId = MAX_ID

    def up_to(self, most: StreamId | None) -> Span:
        """Return the span without entries above this one; None: the same span."""
        return self if most is None else replace(self, most=most)

    def choice(self, server: Server, snapshot: GroupSnapshot, query: str) -> Choice:
        """Return the entries of one stream. Raises StreamStateError if the query may not have committed all of them."""
        stream, head = snapshot.stream, snapshot.head
        committed = _committed_position(snapshot, query)
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
        last = min(last, self.most)
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


def replay(server: Server, snapshot: GroupSnapshot, query: str, span: Span, act: bool) -> Replayed:
    """Hand the entries to the stopped query, one page per transaction; unless `act`, only count them. Raises
    GroupInUseError, StreamStateError, ServerError: pages before the error stay handed over."""
    choice = span.choice(server, snapshot, query)
    entries = claim_again(server, snapshot, query, choice, act)
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


def _committed_position(snapshot: GroupSnapshot, query: str) -> StreamId:
    """Return the last committed entry. Raises StreamStateError if the query has no pending list."""
    mark = snapshot.marks[query]
    if not mark.has_pending_list:
        raise StreamStateError(
            f"query {query!r} of group {snapshot.group!r} reads stream {snapshot.stream!r} with noAck=true, "
            "so it does not read entries that are handed to it. Set its group back with rstream "
            "groups seek, and start the query with a new checkpoint"
        )
    return mark.id
