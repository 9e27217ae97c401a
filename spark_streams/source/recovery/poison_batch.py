"""Cutting a batch that kills its query into pieces, until the entry that kills is alone and becomes a dead letter.

Spark replays a failed batch with the same offsets until it succeeds. So the driver counts on the server how many runs
have planned a batch without committing it. If there are too many (`maxDeliveries`), it moves the entries (XCLAIM) to
consumers of their own, `<consumer>~held~<first id>~<batch>.<piece>`, a sixteenth to each. The batch is committed empty,
and the pieces are the query's next batches. A piece that dies is cut in turn. poison_state decides which piece is read
next and when a single entry becomes a dead letter, and why a good entry does not. Other entries are read meanwhile. To
find one killer among a million entries takes about ten restarts more than `maxDeliveries`.

Entries are pending all the time while they are moved, under a name of the query: a crash loses none. The record on the
server has the number of entries of each consumer. If a consumer holds fewer, the query reports them as lost, also if
another query has claimed them (claimIdle): the server does not tell the two apart.
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
from spark_streams.source.recovery.poison_pieces import HeldEntries, held_entries, move_to_pieces, piece_consumers
from spark_streams.source.recovery.poison_record import (
    CachedPoisonState,
    Failure,
    Record,
    delete_failure,
    fetch_failure,
    is_done_in_sink,
)
from spark_streams.source.recovery.poison_state import PIECES, PoisonState
from spark_streams.wire.connection.server import Server

_log = logging.getLogger("spark_streams.source")

_PAGE = 10_000  # IDs per round trip


class PoisonBatch:
    """One query's attempts at its batches.

    max_deaths: runs that an unchanged batch may kill, None: unlimited; dead_letter: receives entries that are given up;
    losses: reports entries that are missing from pieces. Methods take the run's copy of the state and return the new
    one.
    """

    def __init__(
        self,
        max_deaths: int | None,
        member: Membership,
        dead_letter: Callable[[DeadEntries], None],
        losses: DataLoss,
        limits: Limits,
    ) -> None:
        self._max_deaths = max_deaths
        self._member = member
        self._dead_letter = dead_letter
        self._losses = losses
        self._limits = limits
        self._run = secrets.token_hex(6)

    # -- a batch is planned --------------------------------------------------------------------------------------

    def attempt(
        self, server: Server, begin: Offset, end: Offset, cache: CachedPoisonState, missing_groups: Sequence[str] = ()
    ) -> tuple[bool, CachedPoisonState]:
        """Count this run's attempt at a batch. If too many runs have died of it and the sink has not completed it, set
        its entries aside. Return whether the batch has fewer entries than it was made with.

        missing_groups: streams of the batch whose group, and with it the pending entries, no longer exists.

        After an exception, call it again. Raises GroupMissingError, ServerError, DataLossError.
        """
        if not end.held:
            return False, cache  # the batch only reports losses (microbatch.trigger)
        record = Record(server, cache, end, begin)
        state = record.state.for_batch(end.token)
        died = state.runs - (state.run == self._run)  # this run counts once, also if the connection broke before
        if self._max_deaths is None:
            return state.narrowed, record.cache
        remaining = end.without(missing_groups)
        ranges = ranges_of(remaining) if died else []
        pending = pending_ranges(server, self._member, ranges, _PAGE, limits=self._limits)
        state = replace(state, runs=died + 1, run=self._run)
        may_go_on = died < state.allowed_deaths(self._max_deaths, _is_unchanged(state, end))
        if not pending or (state.aside is None and (may_go_on or is_done_in_sink(server, end))):
            record.save(state)
            return state.narrowed, record.cache
        self._set_aside(server, record, state, end, pending, remaining)
        return record.state.narrowed, replace(record.cache, may_hold=True)

    def _set_aside(
        self,
        server: Server,
        record: Record,
        state: PoisonState,
        end: Offset,
        pending: Sequence[EntryRange],
        remaining: Offset,
    ) -> None:
        """Move all entries of a batch to consumers of their own. remaining: its end, without missing groups."""
        count, held = sum(entries.count for entries in pending), entries_per_stream(pending)
        is_new, taken = state.aside is None, Counter[str]()
        if is_new:
            taken = Counter() if state.narrowed else _entries_of(remaining) - held
            if not self._losses.allowed:
                self._report_lost(Kind.PENDING_TAKEN, taken)
            _log.warning("a batch of %d entries has killed its query %d times and is set aside", count, state.runs - 1)
            failure = fetch_failure(server, end)
            cause = failure if count == 1 else Failure()
            is_unchanged = _is_unchanged(state, end)
            state = state.set_aside(count, is_unchanged, piece_consumers(end), cause.error, cause.message)
        record.save(state)
        if is_new:
            delete_failure(server, end)
        new_pieces = move_to_pieces(server, self._member, ranges_of(remaining), state.size, end.token, self._limits)
        record.save(state.with_pieces(new_pieces))
        self._report_lost(Kind.PENDING_TAKEN, taken)
        self._report_deleted(held, new_pieces)

    # -- a batch is chosen ---------------------------------------------------------------------------------------

    def next_piece(
        self, server: Server, states: Mapping[str, GroupState], begin: Offset, cache: CachedPoisonState
    ) -> tuple[dict[str, list[Claimed]], CachedPoisonState]:
        """Return the piece that is the next batch, or nothing. begin: committed, and about to be acknowledged.

        Raises ServerError, DataLossError.
        """
        held = held_entries(self._member, states, piece_consumers(begin))
        if not begin.streams or not (held or cache.may_hold):
            return {}, cache
        record = Record(server, cache, begin)
        has_rows = any(share.count for share in begin.shares.values()) or any(begin.claimed.values())
        state = record.state.after_commit(begin.token, piece_consumers(begin), has_rows)
        state, missing = state.with_held(held, states.keys())
        saved_state = record.state
        if missing:
            if self._losses.allowed:
                record.save(state)  # so that no later run counts them again
            self._report_lost(Kind.PENDING_TAKEN, missing)
        for condemned in list(state.condemned()):
            state = self._give_up(server, record, condemned, state)
        while (large := state.piece_to_cut()) is not None:
            state = self._cut(server, record, large, state)
        name = state.next_piece() if self._max_deaths is not None else state.fallback_piece()
        piece = _claims_of(state, name)
        if self._max_deaths is None and name is not None:
            state = state.without(name)  # deaths are not counted, and it may be acknowledged before it is read
        if state != saved_state:
            record.save(state)
        return piece, replace(record.cache, may_hold=bool(state.pieces))

    def fallback_piece(self, cache: CachedPoisonState) -> dict[str, list[Claimed]]:
        """Return the piece that is the next batch if there is nothing else to read, or nothing."""
        return {} if cache.state is None else _claims_of(cache.state, cache.state.fallback_piece())

    def share_of(self, backlog: int, limit: int | None) -> int:
        """Return how many new entries of this backlog a batch may have while pieces wait for other batches."""
        share = -(-backlog // PIECES)
        return share if limit is None else min(share, limit)

    def _cut(self, server: Server, record: Record, name: str, state: PoisonState) -> PoisonState:
        """Cut a piece that has not died."""
        piece = state.pieces[name]
        ranges = [PendingRange(stream, MAX_ID, consumer=name) for stream in piece.entries]
        # A crash in between leaves pieces without a record. They count as pieces that have not died, which is right.
        record.save(state.without(name))
        size = -(-piece.count // PIECES)
        new_pieces = move_to_pieces(server, self._member, ranges, size, secrets.token_hex(6), self._limits)
        delete_claim_consumers(server, self._member, {stream: [Claimed(name, 0)] for stream in piece.entries})
        state = state.cut(name, new_pieces)
        record.save(state)
        self._report_deleted(Counter(piece.entries), new_pieces)
        return state

    def _give_up(self, server: Server, record: Record, name: str, state: PoisonState) -> PoisonState:
        """Make a dead letter of the entry that kills the query."""
        state = state.give_up(name)
        record.save(state)
        piece = state.pieces[name]
        [stream] = piece.entries
        for entry_id, _, _, deliveries in server.execute("XPENDING", stream, self._member.group, "-", "+", 1, name):
            message = piece.message or "the query ended each time that it read this entry"
            ids = [StreamId.parse(entry_id)]
            _log.warning("stream %r: entry %s kills the query and is given up: %s", stream, ids[0], printable(message))
            dead = DeadEntries(stream, name, ids, [deliveries], "query", "poison", piece.error, message)
            self._dead_letter(dead)
        delete_claim_consumers(server, self._member, {stream: [Claimed(name, 0)]})
        return state.without(name)

    # -- losses --------------------------------------------------------------------------------------------------

    def _report_deleted(self, before: Counter[str], pieces: HeldEntries) -> None:
        """Report the entries that XCLAIM has dropped because the stream no longer has them. Raises DataLossError."""
        for held in pieces.values():
            before = before - Counter(held)
        self._report_lost(Kind.PENDING_REMOVED, before)

    def _report_lost(self, kind: Kind, lost: Mapping[str, int]) -> None:
        """Report entries that were held apart and are missing, per stream. Raises DataLossError."""
        for stream, count in lost.items():
            if count > 0:
                self._losses.report(Finding(kind, stream, lost=count, detail="of a batch that killed the query"))


def _claims_of(state: PoisonState, name: str | None) -> dict[str, list[Claimed]]:
    """Return a piece as the claims of a batch."""
    return {} if name is None else {s: [Claimed(name, count)] for s, count in state.pieces[name].entries.items()}


def _entries_of(end: Offset) -> Counter[str]:
    """Return how many entries a batch has of each stream."""
    counts = Counter({stream: share.count for stream, share in end.shares.items()})
    for stream, claims in end.claimed.items():
        counts[stream] += sum(claim.count for claim in claims)
    return counts


def _is_unchanged(state: PoisonState, end: Offset) -> bool:
    """Whether a batch has all its entries and is not a piece of another one."""
    return not (state.narrowed or piece_consumers(end))


def ranges_of(end: Offset) -> list[PendingRange]:
    """Return the ranges of a batch's pending entries, in order."""
    shares = [PendingRange(stream, end[stream], share.after) for stream, share in sorted(end.shares.items())]
    return [*shares, *claimed_ranges(end.claimed)]
