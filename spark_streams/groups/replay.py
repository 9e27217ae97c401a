"""Replay: a stopped query reads a part of its streams again, with the checkpoint that it has.

    given to the group    |--------------------------|
    committed by query    |------------------|
    replay                      [first … last]        handed to the query anew (groups.claim: claim_again)

The group and the checkpoint stay where they are. The query finds the entries pending for it below what it has
committed, and reads them with its next batches. What lies above its commit mark may be of a batch that Spark runs again
by itself; only the checkpoint says so, and a replay that reaches there is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.errors import StreamStateError
from spark_streams.groups.claim import claim_again
from spark_streams.groups.group_snapshot import Standing
from spark_streams.groups.pending_selection import Choice
from spark_streams.groups.target import Target
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.model.operator_commands import seek_command
from spark_streams.source.findings.count_entries import count_between
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Replayed:
    """What was, or would be, handed to a query of one stream. after, last: the replay has entries with after < id ≤
    last; entries: handed over; held: entries of that range that are pending already and stay where they are."""

    stream: str
    group: str
    query: str
    after: str
    last: str
    entries: int
    held: int


@dataclass(frozen=True)
class Span:
    """What of a stream is to be read again. begin: an entry's ID itself is read again; end: the last one, None: all
    that the query has committed."""

    begin: Target
    end: Target | None
    now_ms: int

    def choice(self, server: Server, standing: Standing, query: str) -> Choice:
        """The entries of one stream. Raises StreamStateError if the query may not have committed all of them."""
        stream, head = standing.stream, standing.head
        committed = _committed_by(standing, query)
        after = (
            self.begin.position(server, stream, head, self.now_ms, committed)
            if self.begin.id is None
            else self.begin.id.previous()
            if self.begin.id > MIN_ID
            else MIN_ID
        )
        if self.end is None:
            last = max(committed, standing.position)
        else:
            last = self.end.position(server, stream, head, self.now_ms, committed)
        if last > committed and (above := count_between(server, stream, max(after, committed), last)):
            raise StreamStateError(
                f"query {query!r} has committed stream {stream!r} up to {committed}, and {above:,} entries of the "
                "replay lie above that: they may be of a batch that Spark runs again by itself, and only the "
                "checkpoint says so. Start the query, stop it when it has nothing to read, and repeat this command; or "
                f"replay what is committed (--to {committed})"
            )
        return Choice(first=after.next(), last=min(last, committed))


def query_in(standing: Standing, consumer: str | None) -> str:
    """The query of a group that a replay is for: this consumer, or the only one that has committed anything. Raises
    StreamStateError."""
    queries = sorted(standing.marks)
    where = f"group {standing.group!r} of stream {standing.stream!r}"
    if consumer is None and len(queries) > 1:
        raise StreamStateError(
            f"{len(queries):,} queries have committed entries of {where}: say which one, --consumer {queries[0]!r} "
            f"(or {', '.join(map(repr, queries[1:]))})"
        )
    query = consumer if consumer is not None else queries[0] if queries else None
    if query is None or query not in standing.marks:
        who = "no query" if query is None else f"no query {query!r}"
        raise StreamStateError(
            f"{who} has committed entries of {where}, so there is none to read again with its checkpoint. A query that "
            "is started with a new checkpoint reads from where its group stands: rstream groups seek sets that"
        )
    return query


def replay(server: Server, standing: Standing, query: str, span: Span, act: bool) -> Replayed:
    """Hand the entries over, a page a transaction, while the query does not run; or, unless `act`, say which would be.
    Raises GroupInUseError, StreamStateError, ServerError: what was handed over before stays so."""
    choice = span.choice(server, standing, query)
    entries = claim_again(server, standing, query, choice, act)
    after = choice.first.previous() if choice.first > MIN_ID else MIN_ID
    there = count_between(server, standing.stream, after, choice.last) if after < choice.last else 0
    return Replayed(standing.stream, standing.group, query, str(after), str(choice.last), entries, there - entries)


def what_follows(replayed: Replayed) -> list[str]:
    """What becomes of the query, and the other way to read again. Pure."""
    back = seek_command(replayed.stream, replayed.group, replayed.after)
    return [
        f"query {replayed.query!r}, started with the checkpoint that it has, reads these entries again with its next "
        "batches, and then goes on; its group stays where it is",
        "their rows are written a second time: a plain table or stream has them twice, and a sum or count over them is "
        "too high. A table that is merged by a key of the rows, or by _stream and _id, has them once",
        f"the other way: with a new checkpoint the query reads everything above {replayed.after} again ({back}, in "
        "place of this command)",
    ]


def _committed_by(standing: Standing, query: str) -> StreamId:
    """Raises StreamStateError if the query keeps no pending list to hand entries to."""
    mark = standing.marks[query]
    if mark.holds or mark.no_ack:
        raise StreamStateError(
            f"query {query!r} of group {standing.group!r} reads stream {standing.stream!r} with noAck=true or "
            "delivery=at-most-once: it does not read entries that are handed to it. To read again, start it with a new "
            "checkpoint after setting its group back with rstream groups seek"
        )
    return mark.up_to
