"""What a batch has of a stream in the stream's order (`ordered`), though several consumers hold it.

Claimed entries lie below the new ones of their batch. Among what a crash has left pending they lie anywhere: those of
this query, and those that it has claimed and not logged, take turns with them. A range that only one consumer has
entries in is read as it is; where ranges overlap they are cut where the entries change hands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from spark_streams.ids import StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.membership import Membership
from spark_streams.source.pending_list import PAGE, PendingRange, pending_runs
from spark_streams.wire.connection import Connection
from spark_streams.wire.entries.pending_page import texts_of


def in_order(server: Connection, member: Membership, runs: Sequence[EntryRange]) -> list[EntryRange]:
    """The runs, those of a stream by the ids of their entries. Raises GroupMissingError, ServerError."""
    claimed = [run for run in runs if run.consumer]
    if not claimed:
        return list(runs)
    starts = pending_runs(server, member, [replace(_range(run), most=1) for run in claimed], 1)
    first = {(run.stream, run.consumer, run.after): run.last.previous() for run in starts}
    begun = [replace(run, after=first.get((run.stream, run.consumer, run.after), run.after)) for run in runs]
    found: list[EntryRange] = []
    for _, group in itertools.groupby(sorted(begun, key=lambda run: run.stream), key=lambda run: run.stream):
        for together in _overlapping(sorted(group, key=lambda run: (run.after, run.last))):
            found += together if len(together) == 1 else _cut(server, member, together)
    return found


def _range(run: EntryRange) -> PendingRange:
    return PendingRange(run.stream, run.last, run.after, run.consumer)


def _overlapping(runs: Sequence[EntryRange]) -> Iterator[list[EntryRange]]:
    """Runs of a stream in groups of which none reaches into another. They come sorted."""
    together: list[EntryRange] = []
    for run in runs:
        if together and run.after >= max(one.last for one in together):
            yield together
            together = []
        together.append(run)
    if together:
        yield together


def _cut(server: Connection, member: Membership, runs: Sequence[EntryRange]) -> list[EntryRange]:
    """The same entries as runs that follow each other."""
    held: list[tuple[StreamId, str]] = []
    for run in pending_runs(server, member, [_range(run) for run in runs], PAGE, keep_ids=True):
        held += [(StreamId.parse(text), run.consumer) for text in texts_of(run.ids).to_pylist()]
    found: list[EntryRange] = []
    for consumer, group in itertools.groupby(sorted(held), key=lambda one: one[1]):
        ids = [entry for entry, _ in group]
        found.append(EntryRange(runs[0].stream, ids[0].previous(), ids[-1], len(ids), owned=False, consumer=consumer))
    if not found:
        return list(runs)
    # What somebody has taken since it was counted is missed by whoever reads.
    missing = sum(run.count for run in runs) - len(held)
    return [*found[:-1], replace(found[-1], count=found[-1].count + max(0, missing))]
