"""Pieces of batches that died, on the server: consumers of the query's own, of which each holds one (poison_batch).

`<consumer>~held~<first id>~<token>.<number>`, the same on every stream that the piece has entries of. Older versions
wrote `<consumer>~held~<first id>`, one stream to a piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_streams.ids import StreamId
from spark_streams.source.group.group_state import GroupState, fetch_state
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.source.pending_list import PendingRange, pending_runs
from spark_streams.source.recovery.claim import send_claim
from spark_streams.wire.connection import Connection

MARK = "~held~"
_PAGE = 10_000  # entries that are moved with one command

Held = dict[str, dict[str, int]]  # how many entries consumers hold, per stream


def move(server: Connection, member: Membership, ranges: Sequence[PendingRange], size: int, token: str) -> Held:
    """Move these entries to consumers, `size` to each, whatever their streams; what these hold. token: of their names,
    new for each moving: a consumer that was a batch is acknowledged when that batch is settled, and again."""
    name, room, number = "", 0, 0
    for one in ranges:
        after = one.after
        while True:
            most = min(_PAGE, room or size)
            page = pending_runs(server, member, [replace(one, after=after, most=most)], most, keep_ids=True)
            for run in page:
                if not room:
                    first = StreamId.parse(run.ids.split(b"\r\n", 2)[1])
                    name = f"{member.consumer}{MARK}{first.ms:020d}-{first.seq:020d}~{token}.{number:04d}"
                    room, number = size, number + 1
                # Nobody is given them: that counts no delivery.
                send_claim(server, member, run.stream, name, 0, run.count, run.ids, counts=False)
                room -= run.count
                after = run.last
            if not page:
                break
    _, states = fetch_state(server, member, sorted({one.stream for one in ranges}))
    held = held_apart(member, {stream: state for stream, state in states.items() if state is not None})
    return {name: held[name] for name in sorted(held) if name.partition(f"~{token}.")[1]}


def held_apart(member: Membership, states: Mapping[str, GroupState], but: Sequence[str] = ()) -> Held:
    """What the query's pieces hold. but: consumers to leave out."""
    found: Held = {}
    for stream, state in states.items():
        for other in state.others:
            if other.pending and other.name.startswith(member.consumer + MARK) and other.name not in but:
                found.setdefault(other.name, {})[stream] = other.pending
    return found


def held_by(offset: Offset) -> list[str]:
    """The consumers of the piece that a batch is."""
    names = [one.consumer for some in offset.claimed.values() for one in some if MARK in one.consumer]
    return list(dict.fromkeys(names))
