"""Where to cut a stream so that its parts hold about equally many entries. Pure arithmetic over a few looks at it.

A server can tell how many entries a stream has, and which ones come next after an id, but not how many lie between two
ids; and entries come in bursts. So a stream is *looked at* in places: a look is the first few ids at or above a place.
From look to look lies a stretch, whose size is known (the look saw its end) or follows from how densely its first
entries lie. Where a stretch seems too large it is looked at again in its middle.

All of this decides only where to cut. Parts touch and cover the whole, whatever the estimates are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.entry_range import EntryRange

_FINENESS = 4  # looks for each part that is wanted
_MOST_PIECES = 64  # that one stretch is looked at in, the next time


@dataclass(frozen=True)
class Look:
    """ids: the first ones at or above `at` and within the run, ascending; end: whether no further one follows;
    deepest: the last sequence number in the millisecond of `at`, 0 where it has none; below: the last id below `at`,
    None if there is none, or if it was not looked at."""

    at: StreamId
    ids: tuple[StreamId, ...]
    end: bool
    deepest: int = 0
    below: StreamId | None = None


@dataclass(frozen=True)
class Stretch:
    """From a look up to the next one. about: how many entries; known: whether that is exact; seen: the last id that
    the look saw of it, None where there is none; end: no entry of it is above this id."""

    at: StreamId
    upto: StreamId
    about: int
    known: bool
    seen: StreamId | None
    end: StreamId


def first_places(span: EntryRange, entries: int, looks: int) -> list[StreamId]:
    """Where to look first: evenly over the run's ids, at most `looks` times. entries: how many a part shall have."""
    wanted = min(looks, _FINENESS * -(-span.count // entries))
    return _between(span.after.next(), span.last, wanted)


def further_places(span: EntryRange, known: Sequence[Look], entries: int, most: int, looks: int) -> list[StreamId]:
    """Where to look again, at most `looks` times, because a stretch is too large for a part; none where all is well.

    known: the looks so far; most: how many entries the stream has. Where far fewer were found than the run should
    hold, a burst hides between the looks.
    """
    found = _stretches(span, known, most)
    hidden = sum(one.about for one in found) < span.count // 2
    vague = [one for one in found if not one.known and (hidden or 2 * one.about > entries)]
    places: list[StreamId] = []
    for one in sorted(vague, key=lambda one: -one.about):
        pieces = looks // len(vague) if hidden else 2 + 2 * one.about // entries
        if one.seen is not None:
            places += _between(one.seen, one.end, max(2, min(_MOST_PIECES, pieces)))
    return sorted(set(places[:looks]) - {look.at for look in known})


def cut(span: EntryRange, looks: Sequence[Look], entries: int, most: int) -> list[EntryRange]:
    """The run in parts of about so many entries: touching, in order, together the run."""
    parts: list[EntryRange] = []
    after, about = span.after, 0
    for one in stretches(span, looks, most):
        if about > 0 and one.at > after.next() and about + one.about > entries:
            parts.append(replace(span, after=after, last=one.at.previous(), count=about))
            after, about = one.at.previous(), 0
        about += one.about
    return [*parts, replace(span, after=after, count=max(1, about))]


def stretches(span: EntryRange, looks: Sequence[Look], most: int) -> list[Stretch]:
    """The run from look to look. If it has `most` entries, the estimates add up to that."""
    found = _stretches(span, looks, most)
    return _scaled(found, most) if span.count == most else found


def _between(first: StreamId, last: StreamId, pieces: int) -> list[StreamId]:
    """The lower ends of so many equal pieces of [first, last]: by milliseconds, or within one by sequence number."""
    if pieces < 2:
        return [first]
    if first.ms == last.ms:
        width = last.seq - first.seq
        return sorted({StreamId(first.ms, first.seq + width * at // pieces) for at in range(pieces)})
    width = last.ms - first.ms
    places = {StreamId(first.ms + width * at // pieces, 0) for at in range(1, pieces)}
    return [first, *sorted(place for place in places if place > first)]


def _stretches(entries: EntryRange, looks: Sequence[Look], most: int) -> list[Stretch]:
    """The run from end to end."""
    found: list[Stretch] = []
    ordered = sorted(looks, key=lambda look: look.at)
    for number, look in enumerate(ordered):
        final = number + 1 == len(ordered)
        upto = entries.last if final else ordered[number + 1].at
        inside = look.ids if final else [one for one in look.ids if one < upto]
        below = None if final else ordered[number + 1].below
        end = upto if below is None else min(upto, max(below, look.at))
        known = look.end or len(inside) < len(look.ids) or (below is not None and inside[-1:] == [below])
        about = len(inside) if known else max(len(inside), min(most, _count(look, end)))
        found.append(Stretch(look.at, upto, about, known, inside[-1] if inside else None, end))
    return found


def _count(look: Look, upto: StreamId) -> int:
    """About how many entries lie from the first id of a look to `upto`."""
    first, last = look.ids[0], look.ids[-1]
    if first.ms == upto.ms:
        return (upto.seq - first.seq) * len(look.ids) // max(1, last.seq - first.seq)
    between = last.ms - first.ms
    if between <= 1:  # sequence numbers count the entries of a millisecond
        deepest = max(look.deepest, *(one.seq for one in look.ids))
        return max(len(look.ids), 1 + deepest) * (upto.ms - first.ms)
    return (len(look.ids) - 1) * (upto.ms - first.ms) // between


def _scaled(stretches: Sequence[Stretch], total: int) -> list[Stretch]:
    """The same with estimates that add up to the total."""
    certain = sum(one.about for one in stretches if one.known)
    guessed = sum(one.about for one in stretches if not one.known)
    if guessed == 0:
        return list(stretches)
    left = max(0, total - certain)
    return [one if one.known else replace(one, about=one.about * left // guessed) for one in stretches]
