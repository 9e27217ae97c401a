"""Pieces of batches that killed the query, on the server: each is held by a consumer of its own (poison_batch).

`<consumer>~held~<first id>~<token>.<number>` is its name, on every stream of the piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.group_state import GroupState, fetch_state
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.recovery.claim import ClaimTarget, send_claim
from spark_streams.wire.connection.server import Server

MARK = "~held~"
_PAGE = 10_000  # entries that are moved with one command

HeldEntries = dict[str, dict[str, int]]  # per consumer and stream, how many entries the consumer holds


def move_to_pieces(
    server: Server, member: Membership, ranges: Sequence[PendingRange], size: int, token: str, limits: Limits
) -> HeldEntries:
    """Move the pending entries of these ranges to consumers with `size` entries each, of any stream. Return what these
    consumers hold.

    token: part of their names. Each call needs a new one: the consumer of a batch is acknowledged with that batch, and
    possibly once more.
    """
    piece = _OpenPiece(member.consumer, token, size)
    for pending in ranges:
        after = pending.after
        while page := _next_page(
            server, member, replace(pending, after=after, limit=min(_PAGE, piece.capacity or size)), limits
        ):
            for entries in page:
                # No client reads the entries yet, so this is no delivery.
                target = ClaimTarget(piece.consumer_for(entries), counts=False)
                send_claim(server, member, entries.stream, target, entries.count, entries.ids)
                after = entries.last
    _, states = fetch_state(server, member, sorted({pending.stream for pending in ranges}))
    held = held_entries(member, {stream: state for stream, state in states.items() if state is not None})
    return {name: held[name] for name in sorted(held) if name.partition(f"~{token}.")[1]}


@dataclass
class _OpenPiece:
    """The piece that entries are moved to. capacity: how many more it takes."""

    consumer: str
    token: str
    size: int
    name: str = ""
    capacity: int = 0
    number: int = 0

    def consumer_for(self, entries: EntryRange) -> str:
        """Return the consumer to move these entries to. If the piece is full, begin a new one, named after its first
        entry."""
        if not self.capacity:
            first = StreamId.parse(entries.ids.split(b"\r\n", 2)[1])
            self.name = f"{self.consumer}{MARK}{first.ms:020d}-{first.seq:020d}~{self.token}.{self.number:04d}"
            self.capacity, self.number = self.size, self.number + 1
        self.capacity -= entries.count
        return self.name


def _next_page(server: Server, member: Membership, pending: PendingRange, limits: Limits) -> list[EntryRange]:
    """Return the first pending entries of a range, with their IDs: up to its limit, so that they fit one piece."""
    return pending_ranges(server, member, [pending], pending.limit or _PAGE, keep_ids=True, limits=limits)


def held_entries(member: Membership, states: Mapping[str, GroupState], excluded: Sequence[str] = ()) -> HeldEntries:
    """Return what the query's pieces hold. excluded: consumers to leave out."""
    pieces: HeldEntries = {}
    for stream, state in states.items():
        for other in state.others:
            if other.pending and other.name.startswith(member.consumer + MARK) and other.name not in excluded:
                pieces.setdefault(other.name, {})[stream] = other.pending
    return pieces


def piece_consumers(offset: Offset) -> list[str]:
    """Return the consumers of the piece that a batch reads."""
    names = [claim.consumer for claims in offset.claimed.values() for claim in claims if MARK in claim.consumer]
    return list(dict.fromkeys(names))
