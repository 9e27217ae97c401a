"""Probe streams to find out where to cut them (split_points): a few round trips for all streams together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.batch.split_points import Probe, first_positions, further_positions
from spark_streams.connector.source.offset import Range
from spark_streams.connector.wire.connection.server import Server

_ROUNDS = 6  # of probes, if entries come in bursts; otherwise one is enough
_PROBES = 4_096  # per round, shared between the streams
_STREAM_PROBES = (4, 256)  # per round and stream, at least and at most
_PROBE_BYTES = 16 << 20  # limit of what the probes of one round return, if there is more than one per stream
_MAX_IDS = 32  # per probe
_MIN_ENTRIES = 4  # that a probe returns: two IDs, the last ID of a millisecond, and the one below


@dataclass(frozen=True)
class ProbeTarget:
    """A range to probe. entries: wanted size of a part; length: how many entries the range may have; entry_bytes:
    estimated size of an entry; ids: how many IDs a probe asks for at most."""

    range: Range
    entries: int
    length: int
    entry_bytes: int
    ids: int = _MAX_IDS


def may_be_large(entry_range: Range, length: int, entries: int) -> bool:
    """Whether cutting may be worth it. Part of a stream may hold more entries than an even spread suggests."""
    return 2 * length > 3 * entries and entry_range.after.next() < entry_range.last


def probe_streams(server: Server, targets: Sequence[ProbeTarget], rounds: int = _ROUNDS) -> list[list[Probe]]:
    """Return the probes of each target; rounds end when no section between two probes is too large.

    Raises ServerError and its subclasses.
    """
    probes: list[list[Probe]] = [[] for _ in targets]
    share = max(_STREAM_PROBES[0], min(_STREAM_PROBES[1], _PROBES // max(1, len(targets))))
    affordable = [_PROBE_BYTES // (_MIN_ENTRIES * len(targets) * max(1, target.entry_bytes)) for target in targets]
    positions = [
        first_positions(target.range, target.entries, min(share, max(1, limit)))
        for target, limit in zip(targets, affordable, strict=True)
    ]
    for _ in range(rounds):
        if not any(positions):
            break
        _probe(server, targets, positions, probes)
        positions = [
            further_positions(target.range, taken, target.entries, target.length, min(share, limit))
            for target, taken, limit in zip(targets, probes, affordable, strict=True)
        ]
    return probes


def _probe(
    server: Server,
    targets: Sequence[ProbeTarget],
    positions: Sequence[Sequence[StreamId]],
    probes: Sequence[list[Probe]],
) -> None:
    """Probe these positions in one round trip, and add the probes.

    XREVRANGE walks the whole stream if no entry is as low as its lower bound (docs/internals/facts.md, R130). So it is
    not asked for the entry below the first position of a range."""
    pairs = [(number, position) for number, of_target in enumerate(positions) for position in of_target]
    budget = _PROBE_BYTES // max(1, len(pairs))
    counts = [max(2, min(target.ids, budget // max(1, target.entry_bytes))) for target in targets]
    commands: list[tuple[str | bytes | int, ...]] = []
    for number, position in pairs:
        entry_range = targets[number].range
        stream, first = entry_range.stream, entry_range.after.next()
        commands.append(("XRANGE", stream, bytes(position), bytes(entry_range.last), "COUNT", counts[number]))
        commands.append(("XREVRANGE", stream, position.ms, position.ms, "COUNT", 1))
        if position > first:
            commands.append(("XREVRANGE", stream, b"(" + bytes(position), bytes(first), "COUNT", 1))
    # All are read before the first is used: else the connection would be closed.
    next_reply = iter([tuple(StreamId.parse(entry[0]) for entry in reply) for reply in server.execute_each(commands)])
    for number, position in pairs:
        ids, deepest = next(next_reply), next(next_reply)
        below = next(next_reply) if position > targets[number].range.after.next() else ()
        is_last = len(ids) < counts[number]
        deepest_seq = deepest[0].seq if deepest else 0
        probes[number].append(Probe(position, ids, is_last, deepest_seq, below[0] if below else None))
