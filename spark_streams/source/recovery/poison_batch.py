"""Narrowing a batch that kills its query, until the entry that does it is alone, and dead.

Spark replays a batch that failed with the same offsets, for ever. So the driver counts, on the server, how many runs
of the query have planned a batch and not got it committed. Where that is too many (`maxDeliveries`), its entries are
moved (XCLAIM) to consumers of their own, `<consumer>~held~<first id>~<batch>.<piece>`, a sixteenth to each; the batch
is committed empty, and the pieces are the query's next batches. A piece that dies is cut in turn. Which piece is read
when, and when an entry that stands alone becomes a dead letter, is suspects: there it says why a good one does
not. Everything else flows. A killer among a million entries is found in ten restarts or so beyond the first ones,
while other entries keep coming.

What was moved is pending all the time, under a name that tells whose it is: a crash in the midst of it loses nothing.
How many entries each consumer must hold is remembered, too. If one holds fewer, the query reports them as lost: also if
another query has taken them over (claimIdle), because nobody can tell.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.model.printable import printable
from spark_streams.source.entry_range import EntryRange, entries_per_stream
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Claimed, Offset
from spark_streams.source.pending_list import PendingRange, claimed_ranges, pending_ranges
from spark_streams.source.recovery.claim_consumers import delete_claim_consumers
from spark_streams.source.recovery.dead_entries import DeadEntries
from spark_streams.source.recovery.poison_pieces import Held, held_apart, held_by, move
from spark_streams.source.recovery.poison_record import (
    Failure,
    Record,
    Remembered,
    drop_failure,
    failure_of,
    is_done_in_the_sink,
)
from spark_streams.source.recovery.poison_state import PIECES, Book
from spark_streams.wire.connection.server import Server

_log = logging.getLogger("spark_streams.source")

_PAGE = 10_000  # ids in a round trip


class PoisonBatch:
    """One query's attempts at its batches. most: runs that a whole batch may kill, None: any number; dead_letter: what
    to do with an entry that is given up; losses: told of entries that are gone while they are held. known, in what
    follows: what the run knows of the book; it is returned as it is then."""

    def __init__(
        self,
        most: int | None,
        member: Membership,
        dead_letter: Callable[[DeadEntries], None],
        losses: DataLoss,
        limits: Limits,
    ) -> None:
        self._most = most
        self._member = member
        self._dead_letter = dead_letter
        self._losses = losses
        self._limits = limits
        self._run = secrets.token_hex(6)

    # -- a batch is planned --------------------------------------------------------------------------------------

    def attempt(
        self, server: Server, begin: Offset, end: Offset, known: Remembered, gone: Sequence[str] = ()
    ) -> tuple[bool, Remembered]:
        """Count this run's attempt at a batch, and set its entries aside if too many have died of it and the sink has
        not completed it. Return whether it is cut: less than it was.

        gone: streams of the batch whose group has vanished, and with it what was pending.

        To be called again where it has raised. Raises GroupMissingError, ServerError, DataLossError.
        """
        if not end.held:
            return False, known  # a batch of losses (microbatch.trigger)
        record = Record(server, known, end, begin)
        book = record.book.of(end.token)
        died = book.runs - (book.run == self._run)  # the connection broke in the midst of it
        if self._most is None:
            return book.narrowed, record.known
        ranges = ranges_of(end.without(gone)) if died else []
        ours = pending_ranges(server, self._member, ranges, _PAGE, limits=self._limits)
        book = replace(book, runs=died + 1, run=self._run)
        may_go_on = died < book.allows(self._most, whole=_is_whole(book, end))
        if not ours or (book.aside is None and (may_go_on or is_done_in_the_sink(server, end))):
            record.save(book)
            return book.narrowed, record.known
        self._set_aside(server, record, book, end, ours, end.without(gone))
        return record.book.narrowed, replace(record.known, may_hold=True)

    def _set_aside(
        self, server: Server, record: Record, book: Book, end: Offset, ours: Sequence[EntryRange], left: Offset
    ) -> None:
        """Move all entries of a batch to consumers of their own. left: its end, without streams that are gone."""
        count, held = sum(entries.count for entries in ours), entries_per_stream(ours)
        is_new, taken = book.aside is None, Counter[str]()
        if is_new:
            taken = Counter() if book.narrowed else _promised(left) - held
            if not self._losses.allowed:
                self._lose(Kind.PENDING_TAKEN, taken)
            _log.warning("a batch of %d entries has killed its query %d times and is set aside", count, book.runs - 1)
            failure = failure_of(server, end)
            told = failure if count == 1 else Failure()
            book = book.died(count, _is_whole(book, end), held_by(end), told.error, told.message)
        record.save(book)
        if is_new:
            drop_failure(server, end)
        made = move(server, self._member, ranges_of(left), book.size, end.token, self._limits)
        record.save(book.moved(made))
        self._lose(Kind.PENDING_TAKEN, taken)
        self._lose_dropped(held, made)

    # -- a batch is made -----------------------------------------------------------------------------------------

    def next_piece(
        self, server: Server, states: Mapping[str, GroupState], begin: Offset, known: Remembered
    ) -> tuple[dict[str, list[Claimed]], Remembered]:
        """The piece that is the next batch, if there is one. begin: what is committed, and about to be acknowledged.

        Raises ServerError, DataLossError where entries are gone from pieces and that is not allowed.
        """
        there = held_apart(self._member, states, held_by(begin))
        if not begin.streams or not (there or known.may_hold):
            return {}, known
        record = Record(server, known, begin)
        has_rows = any(share.count for share in begin.shares.values()) or any(begin.claimed.values())
        book, missing = record.book.committed(begin.token, held_by(begin), has_rows).seen(there, states.keys())
        before = record.book
        if missing:
            if self._losses.allowed:
                record.save(book)  # they are counted once
            self._lose(Kind.PENDING_TAKEN, missing)
        for guilty in list(book.guilty()):
            book = self._give_up(server, record, guilty, book)
        while (large := book.too_large()) is not None:
            book = self._split(server, record, large, book)
        name = book.next() if self._most is not None else book.last_resort()
        piece = _claimed(book, name)
        if self._most is None and name is not None:
            book = book.without(name)  # nobody counts any more, and it may be acknowledged before it is read
        if book != before:
            record.save(book)
        return piece, replace(record.known, may_hold=bool(book.pieces))

    def last_resort(self, known: Remembered) -> dict[str, list[Claimed]]:
        """The piece that is the next batch where there is nothing else to read, if there is one."""
        return {} if known.book is None else _claimed(known.book, known.book.last_resort())

    def share_of(self, backlog: int, most: int | None) -> int:
        """How many new entries a batch may have, of so many, while pieces wait for others to be committed: a part."""
        part = -(-backlog // PIECES)
        return part if most is None else min(part, most)

    def _split(self, server: Server, record: Record, name: str, book: Book) -> Book:
        """Cut a piece that has not died."""
        piece = book.pieces[name]
        ranges = [PendingRange(stream, MAX_ID, consumer=name) for stream in piece.entries]
        # A crash in between leaves pieces that nobody knows, and that is what they are: nobody suspects them.
        record.save(book.without(name))
        made = move(server, self._member, ranges, -(-piece.count // PIECES), secrets.token_hex(6), self._limits)
        delete_claim_consumers(server, self._member, {stream: [Claimed(name, 0)] for stream in piece.entries})
        book = book.split(name, made)
        record.save(book)
        self._lose_dropped(Counter(piece.entries), made)
        return book

    def _give_up(self, server: Server, record: Record, name: str, book: Book) -> Book:
        """The entry that kills the query, found."""
        book = book.given_up(name)
        record.save(book)
        piece = book.pieces[name]
        [stream] = piece.entries
        for entry, _, _, deliveries in server.execute("XPENDING", stream, self._member.group, "-", "+", 1, name):
            message = piece.message or "the query ended each time that it read this entry"
            ids = [StreamId.parse(entry)]
            _log.warning("stream %r: entry %s kills the query and is given up: %s", stream, ids[0], printable(message))
            dead = DeadEntries(stream, name, ids, [deliveries], "query", "poison", piece.error, message)
            self._dead_letter(dead)
        delete_claim_consumers(server, self._member, {stream: [Claimed(name, 0)]})
        return book.without(name)

    # -- what is missing -----------------------------------------------------------------------------------------

    def _lose_dropped(self, had: Counter[str], made: Held) -> None:
        """XCLAIM drops what is no longer in the stream. Raises DataLossError where that is not allowed."""
        for held in made.values():
            had = had - Counter(held)
        self._lose(Kind.PENDING_REMOVED, had)

    def _lose(self, kind: Kind, gone: Mapping[str, int]) -> None:
        """Entries are gone that were held, or should be. Raises DataLossError where that is not allowed."""
        for stream, count in gone.items():
            if count > 0:
                self._losses.report(Finding(kind, stream, lost=count, what="of a batch that killed the query"))


def _claimed(book: Book, name: str | None) -> dict[str, list[Claimed]]:
    """A piece as a batch has it."""
    return {} if name is None else {s: [Claimed(name, count)] for s, count in book.pieces[name].entries.items()}


def _promised(end: Offset) -> Counter[str]:
    """How many entries a batch has of each stream."""
    counts = Counter({stream: share.count for stream, share in end.shares.items()})
    for stream, claims in end.claimed.items():
        counts[stream] += sum(claim.count for claim in claims)
    return counts


def _is_whole(book: Book, end: Offset) -> bool:
    """Whether a batch is as it was made, and no piece of another one."""
    return not (book.narrowed or held_by(end))


def ranges_of(end: Offset) -> list[PendingRange]:
    """Where a batch's entries are pending, in order."""
    ours = [PendingRange(stream, end[stream], held.after) for stream, held in sorted(end.shares.items())]
    return [*ours, *claimed_ranges(end.claimed)]
