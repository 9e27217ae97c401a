"""Cutting a batch that kills its query into pieces, until the entry that kills is alone and becomes a dead letter.

Spark replays a failed batch with the same offsets until it succeeds. So the driver counts in a record on the server how
many runs have planned a batch without committing it (poison_record.py):

    a batch of 400 entries dies    SET of the attempt by each run, until maxDeliveries runs have died
    it is cut                      SET of 16 pieces of 25 entries (up to 128: single entries); committed without entries
    the next batches               a piece each, and new entries in between; a piece that dies is cut in turn
    an entry has died too often    SET of its end · dead letter and XACK

The entries of a piece stay pending for the query's consumer. A batch is only acknowledged if the record says that its
entries were read (`has_read`): a lost record never means that they are acknowledged unread.

killed after               the next run
SET of the attempt         counts it as a death, also if no task has read
SET of the pieces          plans the batch empty again
commit log of that batch   leaves its entries pending (`has_read`)
SET of an entry's end      gives it up again; a second dead letter is not written
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.base.printable import printable
from spark_streams.connector.errors import DataLossError, GroupMissingError
from spark_streams.connector.source.group.recovery import DataLoss, Finding, entries_lost, notes_lost
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.source.partitioning import Part, pending_parts
from spark_streams.connector.source.pending.claim import DeadEntries, DeadLetterWriter
from spark_streams.connector.source.pending.poison_record import (
    PIECES,
    CachedPoisonState,
    Piece,
    PoisonRecord,
    PoisonState,
    QueryFailure,
    Ranges,
    attempt_key_of,
    fetch_failure,
    is_done_in_sink,
    key_of,
)
from spark_streams.connector.source.pending_list import pending_ids, pending_ranges
from spark_streams.connector.source.settled import Settled
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.pending_page import texts_of

_log = logging.getLogger("spark_streams.source")

_PAGE = 10_000  # IDs per round trip
# A piece's ranges by stream, its pending entries, and the run's copy of the state; without entries if there is none.
ChosenPiece = tuple[dict[str, tuple[Range, ...]], list[Part], CachedPoisonState]


@dataclass(frozen=True)
class PoisonBatch:
    """One query's attempts at its batches. Methods take the run's copy of the state and return the new one."""

    max_deaths: int | None  # runs that an unchanged batch may kill, None: unlimited
    run_name: str  # of this run
    dead_letters: DeadLetterWriter  # of entries that are given up
    losses: DataLoss  # reports entries that are missing from pieces

    # -- a batch is planned --------------------------------------------------------------------------------------

    def attempt(
        self, client: GroupClient, begin: Offset, end: Offset, cache: CachedPoisonState
    ) -> tuple[bool, CachedPoisonState]:
        """Count this run's attempt at a batch. If too many runs have died of it and the sink has not completed it, set
        its entries aside. Return whether they were set aside. May be repeated. Raises GroupMissingError, ServerError,
        DataLossError."""
        record = PoisonRecord(client.server, cache, end, begin)
        if not end.held:
            return False, record.cache  # the batch only corrects a position (trigger.trigger)
        state = record.state.for_batch(end.token)
        died = state.runs - (state.run == self.run_name)  # this run counts once, also if the connection broke before
        if self.max_deaths is None:
            if end.record and not state.narrowed:  # the option was removed: the record must still say that it was read
                record.save(replace(state, runs=died + 1, run=self.run_name))
            return state.narrowed, record.cache
        if state.narrowed:
            return True, record.cache
        name = state.piece_of(end.old)
        state = replace(state, runs=died + 1, run=self.run_name)
        may_go_on = died < state.allowed_deaths(self.max_deaths, is_unchanged=name is None)
        if not died or may_go_on or is_done_in_sink(client.server, end):
            record.save(state, *([] if died else [attempt_key_of(end)]))
            return False, record.cache
        pending = self._pending(client, end)
        if not any(pending.values()):
            record.save(state)
            return False, record.cache
        self._set_aside(client, record, state, end, pending)
        return True, record.cache

    def _pending(self, client: GroupClient, end: Offset) -> Mapping[str, Sequence[Range]]:
        """Return what is pending of a batch by stream. If losses are allowed, without streams whose group, and with it
        the pending entries, no longer exists: then each stream is asked for by itself."""
        pending: dict[str, list[Range]] = {stream: [] for stream in end.taken_from}
        try:
            for entries in pending_ranges(client, end.all_ranges, _PAGE):
                pending[entries.stream].append(entries)
            return pending
        except (GroupMissingError, DataLossError):
            if not self.losses.allowed:
                raise
        pending.clear()
        for stream in end.taken_from:
            with suppress(GroupMissingError, DataLossError):
                pending[stream] = pending_ranges(client, end.ranges(stream), _PAGE)
        return pending

    def _set_aside(
        self,
        client: GroupClient,
        record: PoisonRecord,
        state: PoisonState,
        end: Offset,
        pending: Mapping[str, Sequence[Range]],
    ) -> None:
        """Make pieces of all entries of a batch. pending: by `_pending`."""
        counts = {stream: sum(entries.count for entries in found) for stream, found in pending.items()}
        count = sum(counts.values())
        parts = {stream: end.ranges(stream) for stream in pending}
        for stream in end.taken_from:  # without a group, nothing of it is pending
            held = sum(entries.count for entries in end.ranges(stream))
            self._report_missing(stream, held - counts.get(stream, 0))
        name = state.piece_of(end.old)
        failure = fetch_failure(client.server, end)
        cause = failure if count == 1 else QueryFailure()
        size = state.size_of_pieces(count, name is None, name)
        new_pieces = self._divided(client, parts, size, end.token)
        after = state.set_aside(new_pieces, name, cause.error, cause.message)
        first = next(entries for found in pending.values() for entries in found)
        if count == 1:
            [died] = [after.pieces[new].died for new in new_pieces]
            _log.warning(
                "stream %r: entry %s has killed the query, death %d of %d. It is read again after %d other batches",
                first.stream, first.last, died, after.deaths, died,
            )  # fmt: skip
        else:
            _log.warning(
                "a batch of %d entries has killed the query %d times (stream %r, above %s). It is read as %d pieces of "
                "up to %d entries",
                count, state.runs - 1, first.stream, first.after, len(new_pieces), size,
            )  # fmt: skip
        record.save(after)
        client.server.execute("DEL", key_of("failure", end))  # it explains only one end of the query

    @staticmethod
    def _divided(client: GroupClient, parts: Ranges, size: int, origin: str) -> dict[str, dict[str, list[Range]]]:
        """Return the pending entries of these ranges as pieces of `size` entries, of any stream, each under the name
        of its first entry. origin: of the batch or the piece: entries of two streams may have the same ID."""
        pieces: dict[str, dict[str, list[Range]]] = {}
        capacity, name = 0, ""
        for stream, ranges in sorted(parts.items()):
            for part in ranges:
                after = part.after
                while found := _next_page(client, replace(part, after=after), min(_PAGE, capacity or size)):
                    entries, first = found
                    if not capacity:
                        name = f"{first.ms:020d}-{first.seq:020d}~{origin}.{len(pieces):04d}"
                        pieces[name], capacity = {}, size
                    capacity -= entries.count
                    pieces[name].setdefault(stream, []).append(entries)
                    after = entries.last
        return pieces

    def has_read(self, server: Server, settled: Settled) -> tuple[bool, list[Finding]]:
        """Return whether the tasks of the last batch were given its entries. If the record says that they were set
        aside, or must say that they were read and is lost, they stay pending: the findings say what is lost. A batch
        whose offset names no record may have one, too: if maxDeliveries was set after it had killed the query."""
        end = settled.checkpoint
        if not end.held:
            return True, []
        state = PoisonRecord(server, CachedPoisonState(), end).state
        if state.token != end.token:
            key = key_of("attempts", end).decode("utf-8", "replace")
            lost = [s for s in end.taken_from if end.record and settled.standing(s).is_open]
            return not end.record, [notes_lost(s, end[s], key) for s in lost]
        return not state.narrowed and (state.runs > 0 or not end.record), []

    # -- a batch is chosen ---------------------------------------------------------------------------------------

    def begin(self, client: GroupClient, begin: Offset, read: Collection[str]) -> CachedPoisonState:
        """Return the run's copy of the record, without what this run must not use of it, which is then pending like
        other entries: all of an earlier checkpoint; pieces above the checkpoint, of a batch that this copy of it does
        not have; pieces of streams that it no longer has. Without maxDeliveries no piece is read as a batch, but the
        sink may still have rows of it. What is missing of the streams that are read is reported now: later nobody
        knows how many entries were set aside. Raises ServerError, DataLossError."""
        if not begin.streams:
            return CachedPoisonState(PoisonState())
        record = PoisonRecord(client.server, CachedPoisonState(), begin)
        last = record.state
        if record.cache.key is None:
            return record.cache
        if not begin.token:
            client.server.execute("DEL", key_of("attempts", begin))
            return CachedPoisonState(PoisonState())
        state = last.without_streams(last.streams - begin.at.keys())
        for name, piece in [*state.pieces.items(), *state.away.items()]:
            state = state.without(name) if _is_above(piece, begin) else state
        if self.max_deaths is None and state.streams:
            held = self._committed(state, begin, read)
            for name in held.pieces:
                self._held(client, held, name)
            state = held.released(read)
        if state != last:
            record.save(state)
        return record.cache

    def let_go(
        self, server: Server, begin: Offset, cache: CachedPoisonState, read: Collection[str]
    ) -> CachedPoisonState:
        """Return the run's copy without maxDeliveries, after nothing is pending any more of what was set aside in these
        streams. begin: acknowledged."""
        if self.max_deaths is not None or not cache.streams & {*read}:
            return cache
        record = PoisonRecord(server, cache, begin)
        record.save(record.state.without_streams(read))
        return record.cache

    def next_piece(
        self, client: GroupClient, streams: Sequence[str], begin: Offset, cache: CachedPoisonState
    ) -> ChosenPiece:
        """Return the piece that is the next batch, with its pending entries, or nothing. streams: that are read; begin:
        committed and acknowledged.

        Raises ServerError, DataLossError.
        """
        if self.max_deaths is None or not begin.streams or not cache.may_hold:
            return {}, [], cache
        record = PoisonRecord(client.server, cache, begin)
        state = self._committed(record.state, begin, streams)
        for condemned in list(state.condemned()):
            state = self._give_up(client, record, condemned, state)
        while (large := state.piece_to_cut()) is not None:
            origin = large.partition("~")[2]
            size = -(-state.pieces[large].count // PIECES)
            parts = self._divided(client, state.pieces[large].ranges(), size, origin)
            state = state.cut(large, parts)
        chosen: dict[str, tuple[Range, ...]] = {}
        tasks: list[Part] = []
        while not tasks and (name := state.next_piece()) is not None:
            state, chosen, tasks = self._held(client, state, name)
        return self._chosen(record, state, chosen, tasks)

    @staticmethod
    def _committed(state: PoisonState, begin: Offset, read: Collection[str]) -> PoisonState:
        """Return the state now that the batch that ends there is committed, with pieces of streams that are read, and
        without those of streams that this run no longer has."""
        state = state.after_commit(begin.token, state.piece_of(begin.old), begin.held > 0)
        return state.without_streams(state.streams - begin.at.keys()).with_streams(read)

    def fallback_piece(self, client: GroupClient, begin: Offset, cache: CachedPoisonState) -> ChosenPiece:
        """Return the piece that is the next batch if there is nothing else to read, or nothing."""
        record = PoisonRecord(client.server, cache, begin)
        name = record.state.fallback_piece()
        if name is None:
            return {}, [], cache
        return self._chosen(record, *self._held(client, record.state, name))

    @staticmethod
    def _chosen(
        record: PoisonRecord, state: PoisonState, chosen: dict[str, tuple[Range, ...]], tasks: list[Part]
    ) -> ChosenPiece:
        """Save the state after a piece was chosen, and return the piece."""
        if state != record.state:
            record.save(state)
        return chosen if tasks else {}, tasks, record.cache

    def _held(
        self, client: GroupClient, state: PoisonState, name: str
    ) -> tuple[PoisonState, dict[str, tuple[Range, ...]], list[Part]]:
        """Return a piece's ranges with the numbers that are pending now, and its entries; and the state without the
        piece if nothing is pending. Missing entries are reported."""
        ranges: dict[str, tuple[Range, ...]] = {}
        tasks: list[Part] = []
        for stream, parts in state.pieces[name].ranges().items():
            counted = []
            for part in parts:
                found = pending_ranges(client, [part], client.limits.reserve_step)
                counted.append(replace(part, count=sum(one.count for one in found)))
                tasks += pending_parts(found)
                self._report_missing(stream, part.count - counted[-1].count, part.after)
            ranges[stream] = tuple(counted)
        held = replace(state, pieces={**state.pieces, name: state.pieces[name].of(ranges)})
        return held if tasks else state.without(name), ranges, tasks

    def share_of(self, backlog: int, limit: int | None) -> int:
        """Return how many new entries of this backlog a batch may have while pieces wait for other batches."""
        share = -(-backlog // PIECES)
        return share if limit is None else min(share, limit)

    def _give_up(self, client: GroupClient, record: PoisonRecord, name: str, state: PoisonState) -> PoisonState:
        """Make a dead letter of the entry that kills the query."""
        state = state.give_up(name)
        record.save(state)
        piece = state.pieces[name]
        for stream, parts in piece.ranges().items():
            found = pending_ids(client, parts, _PAGE)
            for entry_id in [text for _, ids in found for text in texts_of(ids).to_pylist()]:
                reply = client.server.execute("XPENDING", stream, client.group, entry_id, entry_id, 1, client.consumer)
                if not reply:
                    continue  # another client has acknowledged it since
                [[_, _, _, deliveries]] = reply
                read = max(deliveries, piece.runs)  # the server does not count what XRANGE has read
                message = piece.message or "the query ended each time that it read this entry"
                entry = StreamId.parse(entry_id)
                _log.warning(
                    "stream %r: entry %s kills the query and is given up: %s", stream, entry, printable(message)
                )
                dead = DeadEntries(stream, client.consumer, [entry], [read], "query", "poison", piece.error, message)
                self.dead_letters.write(client.server, dead)
        return state.without(name)

    def _report_missing(self, stream: str, count: int, above: StreamId = MIN_ID) -> None:
        """Report entries above an ID that were set aside and are missing, if there are any. Raises DataLossError."""
        if count > 0:
            self.losses.report(entries_lost(stream, count, above, "of a batch that killed the query"))


def _is_above(piece: Piece, offset: Offset) -> bool:
    """Whether a batch after this offset has read entries of the piece."""
    ranges = piece.ranges().items()
    return any(part.last > offset[stream] for stream, parts in ranges for part in parts if stream in offset.at)


def _next_page(client: GroupClient, entries: Range, limit: int) -> tuple[Range, StreamId] | None:
    """Return the first pending entries of a range, and the ID of the first one."""
    found = pending_ids(client, [entries], limit, {entries.stream: limit})
    return next(((page, StreamId.parse(ids.split(b"\r\n", 2)[1])) for page, ids in found), None)
