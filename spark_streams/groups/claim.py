"""Handing pending entries of one consumer to another one (XCLAIM … JUSTID), a page a transaction.

JUSTID: nobody is given the entries by it, so it counts no delivery. Whoever gets them counts as having been given them
just now.

`again` (rstream replay): entries that the group was given and nobody holds any more are made pending anew for a query
that does not run (XCLAIM … FORCE), so that it reads them a second time. The group stays where it is.

A query that gets entries reads them with its next batch where they lie below what it has committed. What lies above
that may be of a batch in flight, and be acknowledged with it unread: it stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_streams.errors import StreamStateError
from spark_streams.groups.group_snapshot import Standing, queries_among, query_of
from spark_streams.groups.guard import change
from spark_streams.groups.pending_selection import Choice, pages
from spark_streams.model.commit_mark import Mark, committed_key
from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.source.findings.count_entries import count_missing, ids_between
from spark_streams.wire.connection.connection import Argument
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.released import RELEASED_IDLE, SHOWN
from spark_streams.wire.replies.replies import pairs

_ENDLESS = 1 << 50  # milliseconds
_PAGE = 1_000  # entries that one command changes, some milliseconds of the server's time


@dataclass
class Claimed:
    """What was, or would be, handed over on one stream. gone: entries that were pending and are in the stream no more:
    Redis 7 and later drop them from the pending list meanwhile; above: entries that stay, because the query that would
    get them has not committed what lies there."""

    stream: str
    group: str
    source: str
    to: str
    entries: int = 0
    gone: int = 0
    above: int = 0


def claim(server: Server, standing: Standing, to: str, choice: Choice, act: bool) -> Claimed:
    """Hand entries over, or, unless `act`, say which would be. choice: of one consumer, or of released entries. Raises
    GroupInUseError, StreamStateError, ServerError: what was done before stays done."""
    found, below = _begin(server, standing, to, choice)
    for page in pages(server, standing, below):
        if not act:
            gone = _gone(server, standing, page.ids)
            found.entries += len(page.ids) - gone
        else:
            # Released entries that somebody has taken meanwhile have not been left alone for so long.
            idle = RELEASED_IDLE if page.consumer is None else choice.idle or 0
            command: tuple[Argument, ...] = ("XCLAIM", standing.stream, standing.group, to, idle, *page.ids, "JUSTID")
            queries = [] if page.consumer is None else queries_among([page.owner])
            [claimed] = change(server, standing.stream, standing.group, queries, [command])
            gone = _gone(server, standing, sorted({*page.ids} - {*claimed}))
            found.entries += len(claimed)
        found.gone += gone
    return found


def claim_again(server: Server, standing: Standing, query: str, choice: Choice, act: bool) -> int:
    """Make a range of entries pending for a query, while it does not run, or, unless `act`, only count them; how many
    they are. Raises GroupInUseError, StreamStateError, ServerError."""
    entries = 0
    # Nothing is pending for so long: what somebody holds stays with them.
    head: tuple[Argument, ...] = ("XCLAIM", standing.stream, standing.group, query, _ENDLESS)
    for ids in _ids_again(server, standing, query, choice):
        if act:
            [claimed] = change(server, standing.stream, standing.group, [query], [(*head, *ids, "FORCE", "JUSTID")])
            entries += len(claimed)
        else:
            asked = [("XPENDING", standing.stream, standing.group, one, one, 1) for one in ids]
            entries += server.execute_all(asked).count([])
    return entries


def _ids_again(server: Server, standing: Standing, query: str, choice: Choice) -> Iterator[list[bytes]]:
    bounds = [choice.last, standing.position, _committed_by(server, standing, query)]
    last = min(bound for bound in bounds if bound is not None)
    for ids in ids_between(server, standing.stream, choice.first, last):
        yield from (ids[at : at + _PAGE] for at in range(0, len(ids), _PAGE))


def _begin(server: Server, standing: Standing, to: str, choice: Choice) -> tuple[Claimed, Choice]:
    """Nothing yet, and the choice without what its new consumer must not be given. Raises StreamStateError."""
    source = SHOWN if choice.released else choice.consumers[0]
    if not choice.released and not standing.of([source]):
        raise StreamStateError(
            f"group {standing.group!r} of stream {standing.stream!r} has no consumer {source!r}; rstream pending "
            f"{standing.stream} lists them"
        )
    found = Claimed(standing.stream, standing.group, source, to)
    bound = _committed_by(server, standing, to)
    if bound is not None and choice.last > bound:
        above = replace(choice, first=max(choice.first, bound.next()), limit=None)
        found.above = sum(len(page.ids) for page in pages(server, standing, above))
        choice = choice.up_to(bound)
    return found, choice


def _committed_by(server: Server, standing: Standing, consumer: str) -> StreamId | None:
    """Up to where entries may be handed to a consumer; None where it is no query, as far as anybody knows. Raises
    StreamStateError where it is a query that has committed nothing."""
    query = query_of(consumer)
    if query != consumer:
        raise StreamStateError(
            f"consumer {consumer!r} was made by query {query!r} for entries of its own: hand them to {query!r}"
        )
    mark = Mark.parse(server.execute("GET", committed_key(standing.stream, standing.group, consumer)))
    if mark is not None and mark.no_ack:
        raise StreamStateError(
            f"query {consumer!r} of group {standing.group!r} reads stream {standing.stream!r} with noAck: it cannot "
            "read entries that are handed to it. Start the query without noAck, repeat this command while it runs, "
            f"and set noAck again when rstream pending {standing.stream} --group {standing.group} shows nothing"
        )
    if mark is not None:
        return min(mark.up_to, MAX_ID.previous())
    if consumer in standing.holders:
        raise StreamStateError(
            f"query {consumer!r} of group {standing.group!r} has committed nothing of stream {standing.stream!r} yet: "
            "what it is handed now might be acknowledged unread; wait for its first batch"
        )
    return None


def _gone(server: Server, standing: Standing, ids: Sequence[bytes]) -> int:
    """How many of these are in the stream no more, where the server drops such entries from pending lists."""
    if standing.head.added is None or not ids:
        return 0
    info = pairs(server.execute("XINFO", "STREAM", standing.stream))
    first, deleted = info[b"recorded-first-entry-id"], StreamId.parse(info[b"max-deleted-entry-id"])
    if not info[b"length"]:
        return len(ids)
    # What lies above the last one that was ever deleted is there.
    doubtful = [one for one in ids if StreamId.parse(one) < StreamId.parse(first) or StreamId.parse(one) <= deleted]
    return count_missing(server, standing.stream, doubtful)
