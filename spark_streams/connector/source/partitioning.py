"""Parts of a batch, what a task reads of one range each, divided into tasks, and where a stream is cut into parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.wire.connection import Server

By = Literal["all", "pending"] | bytes
ALL: Literal["all"] = "all"
PENDING: Literal["pending"] = "pending"


@dataclass(frozen=True)
class Part:
    """Entries of a range that a task reads."""

    range: Range
    # How they are found. ALL: all that the stream has in the range; the group has delivered them to nobody else.
    # PENDING: those that are pending for the query's consumer, because others may have some of the range.
    # Bytes: those with these IDs, as packed arguments without separators (`PendingPage.ids`)
    by: By

    @property
    def stream(self) -> str:
        return self.range.stream

    @property
    def count(self) -> int:
        return self.range.count


_Entries = TypeVar("_Entries", Range, Part)


def pending_parts(ranges: Iterable[Range]) -> list[Part]:
    """Return what a task reads of ranges whose pending list was read."""
    return [Part(entries, PENDING) for entries in ranges]


def entries_per_stream(of: Iterable[Range | Part]) -> Counter[str]:
    """Return how many entries these ranges or parts have, per stream."""
    counts: Counter[str] = Counter()
    for entries in of:
        counts[entries.stream] += entries.count
    return counts


def by_stream(of: Iterable[_Entries]) -> dict[str, list[_Entries]]:
    """Return these ranges or parts in their order, per stream."""
    found: dict[str, list[_Entries]] = {}
    for entries in of:
        found.setdefault(entries.stream, []).append(entries)
    return found


_Plain = tuple[Any, ...]  # a pickled part: its fields and those of its range, with the IDs as plain tuples
_SPREAD = 4  # tasks over which a batch is spread, if each has at least Limits.smallest_task entries
_SPREAD_ORDERED = 32  # the same if ordered, because tasks differ more in size


@dataclass(frozen=True)
class Task:
    """What one task reads, the parts of a stream in its order."""

    parts: tuple[Part, ...]

    def __reduce__(self) -> tuple[Callable[[list[_Plain]], Task], tuple[list[_Plain]]]:
        """Plain tuples are pickled in a third of the time: the driver pickles a batch before its first task starts."""
        ranges = [(part.range, part.by) for part in self.parts]
        plain = [(r.stream, tuple(r.after), tuple(r.last), r.count, r.until, by) for r, by in ranges]
        return _task_of, (plain,)

    @property
    def ranges(self) -> list[Range]:
        return [part.range for part in self.parts]

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)


def _task_of(parts: list[_Plain]) -> Task:
    return Task(
        tuple(
            Part(Range(stream, StreamId(*after), StreamId(*last), count, until), by)
            for stream, after, last, count, until, by in parts
        )
    )


@dataclass(frozen=True)
class Plan:
    """A batch as tasks."""

    tasks: list[Task]  # in the order of their streams
    narrowed: bool  # the batch is a piece of a failed batch, or there are such pieces (poison_batch)
    lossy: bool = False  # it has fewer entries than its offset says
    noted: frozenset[str] = frozenset()  # streams with entries that an earlier run of the batch has noted (task.notes)


def divide_into_tasks(
    parts: Iterable[Part], entries_per_task: int, ordered: bool = False, limits: Limits = LIMITS
) -> list[Task]:
    """Return tasks of about `entries_per_task` entries, from parts in the order of their streams. Touching ranges are
    joined, and small ones share a task. A range is never cut, because the IDs inside it are unknown. ordered: all parts
    of a stream are in one task, and few streams share a task, because a task cannot be cut."""
    filled = [part for part in parts if part.count]
    total = sum(part.count for part in filled)
    size = task_size(total, entries_per_task, limits, _SPREAD_ORDERED if ordered else _SPREAD)
    whole = [_joined(of_stream, None) for of_stream in by_stream(filled).values()] if ordered else []
    groups = whole or [[part] for part in _joined(filled, size)]
    of_tasks: list[list[Part]] = []
    remaining = 0
    for group in groups:
        count = sum(part.count for part in group)
        if of_tasks and count <= remaining:
            of_tasks[-1] += group
            remaining -= count
        else:
            of_tasks.append(group)
            remaining = size - count
    return [Task(tuple(group)) for group in of_tasks]


def task_size(entries: int, entries_per_task: int, limits: Limits = LIMITS, spread_over: int = _SPREAD) -> int:
    """Return the most entries of a task. A batch that fits into one task is spread over several."""
    spread = -(-entries // spread_over)
    return min(entries_per_task, max(limits.smallest_task, spread))


def _joined(parts: Iterable[Part], size: int | None) -> list[Part]:
    """Join touching ranges that are read in the same way, up to `size` entries; None: unlimited."""
    joined: list[Part] = []
    for part in parts:
        together = _together(joined[-1], part) if joined else None
        if together is not None and (size is None or together.count <= size):
            joined[-1] = together
        else:
            joined.append(part)
    return joined


def _together(one: Part, above: Part) -> Part | None:
    """Return two parts as one; None: they do not touch, or they are read in different ways."""
    below, upper = one.range, above.range
    if (below.stream, below.last, below.until) != (upper.stream, upper.after, upper.until):
        return None
    ranges = Range(below.stream, below.after, upper.last, below.count + upper.count, below.until)
    if isinstance(one.by, bytes) and isinstance(above.by, bytes):
        return Part(ranges, one.by + above.by)
    return Part(ranges, one.by) if one.by == above.by else None


def share(limit: int, backlog: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Divide `limit` entries between streams. No stream gets more than its backlog. Small backlogs are taken
    completely, and the rest is divided equally. If there are more streams than entries, they take turns."""
    names = sorted(stream for stream, waiting in backlog.items() if waiting > 0)
    if limit < len(names):
        return {names[(turn * limit + number) % len(names)]: 1 for number in range(limit)}
    smallest_first = sorted(names, key=lambda stream: (backlog[stream], stream))
    shares: dict[str, int] = {}
    remaining = limit
    for position, stream in enumerate(smallest_first):
        streams_left = len(smallest_first) - position
        shares[stream] = min(backlog[stream], -(-remaining // streams_left))
        remaining -= shares[stream]
    return shares


# -- cut a stream ------------------------------------------------------------------------------------------------------
# So that its parts hold about equally many entries: a few round trips for all streams together.
#
# A server does not tell how many entries lie between two IDs. So a stream is probed: a probe is the first few IDs at or
# above a position. The size of the section up to the next probe is exact if the probe reached its end; else it is
# estimated from how densely its first entries lie. The parts touch and cover the whole range, however wrong that is.

_ROUNDS = 6  # of probes, if entries come in bursts; otherwise one is enough
_PROBES = 4_096  # per round, shared between the streams
_STREAM_PROBES = (4, 256)  # per round and stream, at least and at most
_PROBE_BYTES = 16 << 20  # limit of what the probes of one round return, if there is more than one per stream
_MAX_IDS = 32  # per probe
_MIN_ENTRIES = 4  # that a probe returns: two IDs, the last ID of a millisecond, and the one below
_PROBES_PER_PART = 4
_MAX_PIECES = 64  # that a section is cut into for the next round of probes


@dataclass(frozen=True)
class ProbeTarget:
    range: Range  # to be cut
    entries: int  # wanted size of a part
    length: int  # how many entries the range may have
    entry_bytes: int  # estimated size of an entry


@dataclass(frozen=True)
class Probe:
    """What a probe of a range has returned."""

    position: StreamId  # where it begins
    ids: tuple[StreamId, ...]  # the first IDs at or above the position and within the range, ascending
    is_last: bool  # no further ID follows
    deepest: int = 0  # the last sequence number in the position's millisecond, 0 if there is none
    below: StreamId | None = None  # the last ID below the position, None if there is none or it was not asked for


def cut_large_parts(
    server: Server, parts: Sequence[Part], entries: int, lengths: Mapping[str, int], entry_bytes: Mapping[str, int]
) -> list[Part]:
    """Return the parts, with those that are too large for a task cut up. Those with known IDs are not cut.

    entries: wanted of each part; lengths, entry_bytes: of the streams, and estimated of an entry. Raises ServerError.
    """
    targets = [
        ProbeTarget(part.range, entries, lengths[part.stream], entry_bytes[part.stream])
        for part in parts
        if part.by == ALL and may_be_large(part.range, lengths[part.stream], entries)
    ]
    probes = dict(zip([target.range for target in targets], probe_streams(server, targets), strict=True))
    smaller: list[Part] = []
    for part in parts:
        if probes.get(part.range):
            pieces = cut(part.range, probes[part.range], entries, lengths[part.stream])
            smaller += [replace(part, range=piece) for piece in pieces]
        else:
            smaller.append(part)
    return smaller


def may_be_large(entry_range: Range, length: int, entries: int) -> bool:
    """Whether cutting may be worth it. Part of a stream may hold more entries than an even spread suggests."""
    return 2 * length > 3 * entries and entry_range.after.next() < entry_range.last


def probe_streams(server: Server, targets: Sequence[ProbeTarget]) -> list[list[Probe]]:
    """Return the probes of each target; rounds end when no section between two probes is too large."""
    probes: list[list[Probe]] = [[] for _ in targets]
    share = max(_STREAM_PROBES[0], min(_STREAM_PROBES[1], _PROBES // max(1, len(targets))))
    affordable = [_PROBE_BYTES // (_MIN_ENTRIES * len(targets) * max(1, target.entry_bytes)) for target in targets]
    positions = [
        first_positions(target.range, target.entries, min(share, max(1, limit)))
        for target, limit in zip(targets, affordable, strict=True)
    ]
    for _ in range(_ROUNDS):
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
    """Probe these positions in one round trip, and add the probes. Not for the entry below the first position of a
    range: XREVRANGE walks the whole stream if no entry is as low as its lower bound (FACTS R130)."""
    pairs = [(number, position) for number, of_target in enumerate(positions) for position in of_target]
    budget = _PROBE_BYTES // max(1, len(pairs))
    counts = [max(2, min(_MAX_IDS, budget // max(1, target.entry_bytes))) for target in targets]
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


def first_positions(entry_range: Range, entries: int, limit: int) -> list[StreamId]:
    """Return the positions of the first round, evenly over the range, at most `limit`. entries: wanted per part."""
    probes = min(limit, _PROBES_PER_PART * -(-entry_range.count // entries))
    return _between(entry_range.after.next(), entry_range.last, probes)


def further_positions(
    entry_range: Range, probes: Sequence[Probe], entries: int, length: int, limit: int
) -> list[StreamId]:
    """Return at most `limit` positions within the sections that are too large for a part.

    length: entries of the stream. If the probes account for far fewer entries than the range should hold, a burst lies
    hidden between them.
    """
    sections = _estimates(entry_range, probes, length)
    is_hidden = sum(section.count for section in sections) < entry_range.count // 2
    vague = [section for section in sections if not section.is_exact and (is_hidden or 2 * section.count > entries)]
    positions: list[StreamId] = []
    for section in sorted(vague, key=lambda section: -section.count):
        pieces = limit // len(vague) if is_hidden else 2 + 2 * section.count // entries
        if section.seen is not None:
            positions += _between(section.seen, section.end, max(2, min(_MAX_PIECES, pieces)))
    return sorted(set(positions[:limit]) - {probe.position for probe in probes})


def _between(first: StreamId, last: StreamId, pieces: int) -> list[StreamId]:
    """Return the lower ends of `pieces` equal pieces of [first, last]: by milliseconds, or within one by sequence
    number."""
    if pieces < 2:
        return [first]
    if first.ms == last.ms:
        width = last.seq - first.seq
        return sorted({StreamId(first.ms, first.seq + width * piece // pieces) for piece in range(pieces)})
    width = last.ms - first.ms
    positions = {StreamId(first.ms + width * piece // pieces, 0) for piece in range(1, pieces)}
    return [first, *sorted(position for position in positions if position > first)]


def cut(entry_range: Range, probes: Sequence[Probe], entries: int, length: int) -> list[Range]:
    """Return the range in parts of about `entries` entries: touching, in order, together the whole range."""
    parts: list[Range] = []
    after, count = entry_range.after, 0
    sections = _estimates(entry_range, probes, length)
    for section in _scaled(sections, length) if entry_range.count == length else sections:
        if count > 0 and section.first > after.next() and count + section.count > entries:
            parts.append(replace(entry_range, after=after, last=section.first.previous(), count=count))
            after, count = section.first.previous(), 0
        count += section.count
    return [*parts, replace(entry_range, after=after, count=max(1, count))]


@dataclass(frozen=True)
class ProbedSection:
    first: StreamId  # position of its probe
    count: int  # of entries
    is_exact: bool  # the count is no estimate
    seen: StreamId | None  # the last ID of the section that the probe returned, None if there is none
    end: StreamId  # no entry of the section is above this ID


def _estimates(entry_range: Range, probes: Sequence[Probe], length: int) -> list[ProbedSection]:
    sections: list[ProbedSection] = []
    ordered = sorted(probes, key=lambda probe: probe.position)
    for number, probe in enumerate(ordered):
        is_final = number + 1 == len(ordered)
        upto = entry_range.last if is_final else ordered[number + 1].position
        inside = probe.ids if is_final else [entry_id for entry_id in probe.ids if entry_id < upto]
        below = None if is_final else ordered[number + 1].below
        end = upto if below is None else min(upto, max(below, probe.position))
        reaches_below = below is not None and inside[-1:] == [below]
        is_exact = probe.is_last or len(inside) < len(probe.ids) or reaches_below
        count = len(inside) if is_exact else max(len(inside), min(length, _estimate(probe, end)))
        sections.append(ProbedSection(probe.position, count, is_exact, inside[-1] if inside else None, end))
    return sections


def _estimate(probe: Probe, upto: StreamId) -> int:
    """Estimate how many entries lie from the first ID of a probe to `upto`."""
    first, last = probe.ids[0], probe.ids[-1]
    if first.ms == upto.ms:
        return (upto.seq - first.seq) * len(probe.ids) // max(1, last.seq - first.seq)
    elapsed = last.ms - first.ms
    if elapsed <= 1:  # sequence numbers count the entries of a millisecond
        deepest = max(probe.deepest, *(entry_id.seq for entry_id in probe.ids))
        return max(len(probe.ids), 1 + deepest) * (upto.ms - first.ms)
    return (len(probe.ids) - 1) * (upto.ms - first.ms) // elapsed


def _scaled(sections: Sequence[ProbedSection], total: int) -> list[ProbedSection]:
    """Return the sections with estimates that add up to the total."""
    exact = sum(section.count for section in sections if section.is_exact)
    estimated = sum(section.count for section in sections if not section.is_exact)
    if estimated == 0:
        return list(sections)
    remaining = max(0, total - exact)
    return [
        section if section.is_exact else replace(section, count=section.count * remaining // estimated)
        for section in sections
    ]
