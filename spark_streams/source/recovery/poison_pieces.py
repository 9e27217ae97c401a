"""Pieces of batches that died, on the server: consumers of the query's own, of which each holds one (poison_batch).

`<consumer>~held~<first id>~<token>.<number>`, the same on every stream that the piece has entries of.
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
from spark_streams.source.recovery.claim import To, send_claim
from spark_streams.wire.connection.server import Server

MARK = "~held~"
_PAGE = 10_000  # entries that are moved with one command

Held = dict[str, dict[str, int]]  # how many entries consumers hold, per stream


def move(
    server: Server, member: Membership, ranges: Sequence[PendingRange], size: int, token: str, limits: Limits
) -> Held:
    """Move these entries to consumers, `size` to each, whatever their streams; what these hold. token: of their names,
    new for each moving: a consumer that was a batch is acknowledged when that batch is acknowledged, and again."""
    piece = _Piece(member.consumer, token, size)
    for pending in ranges:
        after = pending.after
        while page := _page(
            server, member, replace(pending, after=after, limit=min(_PAGE, piece.room or size)), limits
        ):
            for entries in page:
                # Nobody is given them: that counts no delivery.
                to = To(piece.take(entries), counts=False)
                send_claim(server, member, entries.stream, to, entries.count, entries.ids)
                after = entries.last
    _, states = fetch_state(server, member, sorted({pending.stream for pending in ranges}))
    held = held_apart(member, {stream: state for stream, state in states.items() if state is not None})
    return {name: held[name] for name in sorted(held) if name.partition(f"~{token}.")[1]}


@dataclass
class _Piece:
    """The piece that entries are moved to now. room: how many more it takes."""

    consumer: str
    token: str
    size: int
    name: str = ""
    room: int = 0
    number: int = 0

    def take(self, entries: EntryRange) -> str:
        """The piece that these go to: a new one, named after its first entry, where the last one is full."""
        if not self.room:
            first = StreamId.parse(entries.ids.split(b"\r\n", 2)[1])
            self.name = f"{self.consumer}{MARK}{first.ms:020d}-{first.seq:020d}~{self.token}.{self.number:04d}"
            self.room, self.number = self.size, self.number + 1
        self.room -= entries.count
        return self.name


def _page(server: Server, member: Membership, pending: PendingRange, limits: Limits) -> list[EntryRange]:
    """The first entries of a range that are pending, with their ids: as many as it says, and they fit one piece."""
    return pending_ranges(server, member, [pending], pending.limit or _PAGE, keep_ids=True, limits=limits)


def held_apart(member: Membership, states: Mapping[str, GroupState], but: Sequence[str] = ()) -> Held:
    """What the query's pieces hold. but: consumers to leave out."""
    pieces: Held = {}
    for stream, state in states.items():
        for other in state.others:
            if other.pending and other.name.startswith(member.consumer + MARK) and other.name not in but:
                pieces.setdefault(other.name, {})[stream] = other.pending
    return pieces


def held_by(offset: Offset) -> list[str]:
    """The consumers of the piece that a batch is."""
    names = [claim.consumer for claims in offset.claimed.values() for claim in claims if MARK in claim.consumer]
    return list(dict.fromkeys(names))
