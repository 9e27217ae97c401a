"""Removal of entries to which groups still refer: KEEPREF, DELREF, ACKED.

A group refers to an entry that is pending in it, or that it has not delivered yet.

    KEEPREF  the entry is removed; it stays pending, without its fields
    DELREF   the entry is removed, also from the pending lists
    ACKED    the entry is removed only if no group refers to it

Pending lists are ranges, so all of this works on ranges: consecutive entries cost as much as one. Source: XDELEX,
XACKDEL, XTRIM in Redis' command reference.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import islice

from spark_streams.engine.store import entryid
from spark_streams.engine.store.node import Node
from spark_streams.engine.store.node_limits import cut_head
from spark_streams.engine.store.node_list import Slice
from spark_streams.engine.store.stream import StoredStream

# After this number of IDs in a row that are not consecutive, the rest is handled one by one.
_MISSES = 8


class Policy(Enum):
    """How references are treated."""

    KEEPREF = "keepref"
    DELREF = "delref"
    ACKED = "acked"


REMOVED, STILL_REFERENCED, UNKNOWN = 1, 2, -1  # the reply for each ID


def forget(stream: StoredStream, first: int, last: int) -> None:
    """Remove pending entries with first ≤ ID ≤ last from every group."""
    for group in stream.groups.values():
        if first != last:
            group.pending.discard(first, last, stream)
        else:
            group.pending.take(first, stream)


def is_referenced(stream: StoredStream, entry_id: int) -> bool:
    """Whether a group refers to this ID, also to an ID that does not exist (`streamEntryIsReferenced`)."""
    groups = stream.groups.values()
    return any(entry_id > group.last_id or group.pending.get(entry_id, stream) is not None for group in groups)


def referenced(stream: StoredStream, first: int, last: int) -> list[tuple[int, int]]:
    """Return ordered, disjoint ID ranges within first … last that cover exactly the slots that a group refers to."""
    ranges: list[tuple[int, int]] = []
    for group in stream.groups.values():
        if group.last_id < last:
            ranges.append((max(first, group.last_id + 1), last))
        for pel_range in group.pending.index.since(first):
            if pel_range.first > last:
                break
            if pel_range.ids is None:
                ranges.append((max(first, pel_range.first), min(last, pel_range.last)))
            else:
                ids = pel_range.ids[bisect_left(pel_range.ids, first) : bisect_right(pel_range.ids, last)]
                ranges += zip(ids, ids, strict=True)
    ranges.sort()
    merged: list[tuple[int, int]] = []
    for low, high in ranges:
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def remove(stream: StoredStream, ids: Sequence[int], policy: Policy) -> list[int]:
    """Remove these entries (XDELEX). Return for each ID REMOVED, STILL_REFERENCED or UNKNOWN."""
    replies: list[int] = []
    for piece, count in _pieces(stream, ids):
        if piece is None:
            replies.append(_remove_one(stream, ids[len(replies)], policy))
            continue
        node, low, high = piece
        first, last = node.id_at(low), node.id_at(high - 1)
        if policy is Policy.ACKED and referenced(stream, first, last):
            replies += [_remove_one(stream, entry_id, policy) for entry_id in ids[len(replies) : len(replies) + count]]
            continue
        if policy is Policy.DELREF:
            forget(stream, first, last)
        stream.delete_slots(piece)
        replies += [REMOVED] * count
    return replies


def _remove_one(stream: StoredStream, entry_id: int, policy: Policy) -> int:
    if policy is Policy.ACKED and is_referenced(stream, entry_id):
        return STILL_REFERENCED
    if policy is Policy.DELREF:
        forget(stream, entry_id, entry_id)
    return REMOVED if stream.delete(entry_id) else UNKNOWN


def _pieces(stream: StoredStream, ids: Sequence[int]) -> Iterator[tuple[Slice | None, int]]:
    """Yield the IDs in order, as consecutive live slots of one node if they are, else (None, 1)."""
    position = misses = 0
    while position < len(ids):
        piece: Slice | None = None
        count = 1
        if misses < _MISSES and position + 1 < len(ids):
            entry = stream.find(ids[position])
            if entry is not None:
                node, low, _ = entry
                _, high = next(node.spans(low, min(node.slots, low + len(ids) - position)))
                slot_ids = node.id_list(low, high)
                requested_ids = ids[position : position + len(slot_ids)]
                if slot_ids != requested_ids:
                    pairs = zip(slot_ids, requested_ids, strict=True)
                    slot_ids = slot_ids[
                        : next(place for place, (slot_id, requested_id) in enumerate(pairs) if slot_id != requested_id)
                    ]
                count = len(slot_ids)
                piece = Slice(node, low, low + count) if count > 1 else None
            misses = 0 if count > 1 else misses + 1
        yield piece, count
        position += count


def trim(stream: StoredStream, keep: int | None, min_id: int, limit: int, policy: Policy) -> int:
    """As `Stream.trim`, for DELREF and ACKED, which examine each node even if trimming is approximate."""
    removed = index = 0
    while index < len(stream.nodes):
        if keep is not None and stream.length <= keep:
            break
        if limit and not stream.nodes[index].exact:
            cut_nodes, stream.tail_size = cut_head(stream.nodes[index:], stream.limits)
            stream.nodes[index:] = cut_nodes
            stream.firsts[index:] = [node.first for node in cut_nodes]
        node = stream.nodes[index]
        if limit and removed + node.live > limit:
            break
        removable = stream.length - node.live >= keep if keep is not None else node.last < min_id
        stop = node.slots if keep is not None else node.index(min_id)
        before = node.live
        remaining = before if keep is None else stream.length - keep
        for low, high in _removable(stream, node, stop, policy):
            upto = min(high, low + remaining)
            if upto <= low:
                break
            if policy is Policy.DELREF:
                forget(stream, node.id_at(low), node.id_at(upto - 1))
            node.kill(low, upto)
            remaining -= upto - low
        stream.length -= before - node.live
        removed += before - node.live
        if node.live and not removable:
            break
        index += 1
    if removed:
        stream.drop_empty()
    return removed


def _removable(stream: StoredStream, node: Node, stop: int, policy: Policy) -> list[tuple[int, int]]:
    """Return the live slots below `stop` that the policy allows to remove, as continuous ranges."""
    spans = list(node.spans(0, stop))
    if policy is not Policy.ACKED or not spans:
        return spans
    referenced_slots = [(node.index(begin), node.index(behind + 1) if behind < entryid.HIGHEST else node.slots)
            for begin, behind in referenced(stream, node.first, node.last)]  # fmt: skip
    free: list[tuple[int, int]] = []
    for begin, behind in spans:
        low = begin
        for start, end in islice(referenced_slots, max(bisect_right(referenced_slots, (begin, -1)) - 1, 0), None):
            if start >= behind:
                break
            if low < start:
                free.append((low, start))
            low = max(low, end)
        if low < behind:
            free.append((low, behind))
    return free
