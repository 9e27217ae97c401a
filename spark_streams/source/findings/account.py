"""Accounts of all streams of a query, and what a trigger changes in them. balance.py has the account of one stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from spark_streams.model.ids import StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.balance import NOTHING, Known, StreamFacts, balance, expected_count
from spark_streams.source.findings.finding import Finding, Kind, Start
from spark_streams.source.findings.group_state import GroupState, Reserved
from spark_streams.source.findings.snapshot import Snapshot
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Count, Offset
from spark_streams.wire.replies.xinfo import StreamState

# Asks the server how many entries a stream has ever had up to a position; None: unknown.
CountUpTo = Callable[[str, StreamState, StreamId], int | None]


@dataclass(frozen=True)
class Account:
    """What a run knows of its streams. Each step returns the new account."""

    by_stream: Mapping[str, Known] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, Count]:
        """The known count of each stream, at its group's position."""
        return {stream: run.counts for stream, run in self.by_stream.items() if run.counts is not None}

    def compare(
        self,
        begin: Offset,
        snapshot: Snapshot,
        above: Mapping[str, int] | None,
        member: Membership,
        created: Mapping[str, Start],
        joined: Collection[str],
        count_up_to: CountUpTo,
    ) -> tuple[Account, list[Finding]]:
        """Compare the streams with what was read of them. Return the new account, and missing entries as losses.

        above: how many entries are reserved above the checkpoint, None: as this run knows; created: starts of groups
        that this run has created; joined: streams whose group did not have the query's consumer; count_up_to: called
        only if the count is unknown otherwise.
        """
        known_streams, lost = dict(self.by_stream), []
        for stream, state in snapshot.groups.items():
            assert state is not None
            head, run_count = snapshot.heads[stream], known_streams.get(stream, NOTHING)
            if above is None and state.last_delivered >= begin[stream]:
                expected = expected_count(run_count, head, state)
                if expected is not None:
                    known_streams[stream] = expected
                    continue
            start, is_new = created.get(stream), not (begin.token and stream in begin.positions)
            facts = StreamFacts(
                head,
                state,
                partial(count_up_to, stream, head),
                _moved(run_count, state.last_delivered),
                begin.counts.get(stream),
                begin[stream],
                None if above is None else above.get(stream, 0),
                bool(begin.token),
                start is None and is_new and (stream in joined or state.is_shared(member)),
                state.is_shared(member),
                start is not None and start.position == state.last_delivered and start.amid,
            )
            result = balance(facts)
            position = None if result.count is None else state.last_delivered
            known_streams[stream] = Known(result.count, position, result.jumps_at, facts.run.unlogged + result.lost)
            if result.lost:
                lost.append(_entries_lost(stream, result.lost, state.last_delivered))
        return Account(known_streams), lost

    def with_entries_read(self, states: Mapping[str, GroupState]) -> dict[str, GroupState]:
        """Return the groups with the number of entries read, if the server does not know it. For a group that other
        consumers read from, too, only the server's number counts."""
        new_states = dict(states)
        for stream, state in states.items():
            is_bookmark = state.bookmark_position is not None
            if is_bookmark or state.entries_read is None:
                count = self.by_stream.get(stream, NOTHING).counts
                if count is not None and (is_bookmark or not count.shared):
                    new_states[stream] = state._replace(entries_read=count.read)
        return new_states

    def with_reserved(self, ranges: Iterable[EntryRange]) -> Account:
        """Return the account after these ranges were reserved."""
        known_streams = dict(self.by_stream)
        for entries in ranges:
            count, _, jumps_at, unlogged = known_streams.get(entries.stream, NOTHING)
            if count is not None:
                count = Count(count.read + entries.count, *count[1:])
            known_streams[entries.stream] = Known(count, None, jumps_at, unlogged)
        return Account(known_streams)

    def after_reservation(
        self,
        heads: Mapping[str, StreamState],
        before: Mapping[str, GroupState],
        reserved: Reserved,
        member: Membership,
    ) -> tuple[Account, list[Finding]]:
        """Return the account after a reservation, and losses: entries that a stream had at the trigger's snapshot and
        the group was not given, although it has read to the end of that snapshot.

        A group that got no entry is at the end. A bookmark (noAck) is at the end of the batch, above which an
        AvailableNow run does not read. heads, before: streams and groups of the snapshot.
        """
        known_streams, lost = dict(self.with_reserved(reserved.ranges).by_stream), []
        ends = {entries.stream: entries.last for entries in reserved.ranges}
        for stream, state in reserved.states.items():
            run_count = known_streams[stream] = _moved(known_streams.get(stream, NOTHING), state.last_delivered)
            count, head = run_count.counts, heads[stream]
            if count is None:
                continue
            if state.is_shared(member):
                known_streams[stream] = run_count._replace(counts=count._replace(shared=True))
                continue
            end = head.last if state.bookmark_position is None else state.last_delivered
            if ends.get(stream, end) == head.last and head.added is not None:
                missed = _unread(count, head.added)
                # A bookmark keeps a count above what was ever added: so the next diagnosis notices that the server has
                # returned to an older state.
                read = head.added if state.bookmark_position is None else max(count.read, head.added)
                if missed or read != count.read:
                    count = count._replace(read=read, missed=count.missed + missed)
                    known_streams[stream] = run_count._replace(counts=count, unlogged=run_count.unlogged + missed)
                if missed:
                    lost.append(_entries_lost(stream, missed, before[stream].last_delivered))
        return Account(known_streams), lost

    def without_unlogged(self) -> Account:
        """Return the account after its losses are in the next offset."""
        logged = {stream: run._replace(unlogged=0) for stream, run in self.by_stream.items() if run.unlogged}
        return Account({**self.by_stream, **logged}) if logged else self

    def with_counts(self, counts: Mapping[str, Count]) -> Account:
        """Return the account with the checkpoint's counts, for streams of which this run knows no more."""
        return self._with({**counts, **self.counts})

    def share(self, streams: Collection[str]) -> Account:
        """Return the account after other consumers have read from these groups."""
        return self._with({s: count._replace(shared=True) for s, count in self.counts.items() if s in streams})

    def forget(self, streams: Collection[str]) -> Account:
        """Return the account without these streams: what was read of them is unknown."""
        return Account({stream: run_count for stream, run_count in self.by_stream.items() if stream not in streams})

    def at_checkpoint(self, remaining: Mapping[str, int]) -> dict[str, Count]:
        """Return the counts for the checkpoint. remaining: how many entries of each stream are reserved above it."""
        counts = self.counts
        for stream, entries in remaining.items():
            if stream in counts:
                counts[stream] = counts[stream]._replace(read=counts[stream].read - entries)
        return counts

    def _with(self, counts: Mapping[str, Count]) -> Account:
        new = {stream: self.by_stream.get(stream, NOTHING)._replace(counts=count) for stream, count in counts.items()}
        return Account({**self.by_stream, **new})


def _moved(run_count: Known, position: StreamId) -> Known:
    """Return what is known after the group has moved: the server now counts as read what it had not counted yet."""
    if run_count.jumps_at is None or position <= run_count.jumps_at:
        return run_count
    count = None if run_count.counts is None else run_count.counts._replace(missed=0)
    return run_count._replace(counts=count, jumps_at=None)


def _unread(count: Count, added: int) -> int:
    return max(0, added - count.read)


def _entries_lost(stream: str, entries: int, above: StreamId) -> Finding:
    return Finding(Kind.ENTRIES_LOST, stream, above=above, lost=entries)
