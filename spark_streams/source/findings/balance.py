"""Account of a stream: how many of the entries it ever had were read, are still to be read, or are lost.

Pure, except for a question to the server that may be necessary.

For each stream

    added = read + entries above the group's position + entries that are lost and not yet reported

`added` is the server's count of all XADDs (entries-added). `read` is the query's count: entries that were delivered,
and entries that were reported as lost. It is saved with the checkpoint. The server's own count of what a group has read
(entries-read) is used only if nothing else is known, or if other consumers read from the group: after XDEL ahead of the
group, XGROUP SETID or XGROUP CREATE at an ID, the server no longer knows it. The number of entries read is a property
of a position: a group at the checkpoint's position has read what the checkpoint says, whatever the server knows.

The number of entries above the position is known at two moments: when the group has read all entries, and when the
stream begins above the position. Trimming takes the oldest entries first, so entries trimmed unread are noticed at
once. Entries deleted (XDEL) amid unread ones are noticed when the group has read all entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.offset import Count
from spark_streams.wire.replies.xinfo import StreamState


class Known(NamedTuple):
    """What a run knows of one stream.

    counts: at its group's position, None: unknown; position: that position, if the query has read no entry since;
    jumps_at: the position, if the server counts entries lost above it as read when the group reads on (newer servers
    do, FACTS R16); unlogged: lost entries that `counts` has and no offset yet.
    """

    counts: Count | None = None
    position: StreamId | None = None
    jumps_at: StreamId | None = None
    unlogged: int = 0


NOTHING = Known()
_NO_FLAGS = (False, False)  # of a count


@dataclass(frozen=True)
class StreamFacts:
    """What is known of one stream when its account is computed.

    state: of its group; ask: asks the server how many entries the stream has ever had up to a position, None: unknown;
    run: what this run knows; logged: what the checkpoint knows, at `logged_at`; reserved: how many entries above the
    checkpoint are reserved for the query, None: as this run knows; has_token: there is a checkpoint; is_joining: the
    query has had no batch of the stream, and other clients have made the group or read from it; is_shared: other
    consumers read from the group; made_amid: this run has created the group, at an entry that the stream had.
    """

    head: StreamState
    state: GroupState
    ask: Callable[[StreamId], int | None]
    run: Known = NOTHING
    logged: Count | None = None
    logged_at: StreamId = MIN_ID
    reserved: int | None = None
    has_token: bool = True
    is_joining: bool = False
    is_shared: bool = False
    made_amid: bool = False

    @property
    def position(self) -> StreamId:
        """The group's position."""
        return self.state.last_delivered

    @property
    def held(self) -> int | None:
        """How many entries the stream has above the position; None: unknown."""
        return held_above(self.head, self.position)

    @cached_property
    def up_to(self) -> int | None:
        """How many entries the stream has ever had up to the position; None: unknown."""
        return self._up_to(self.position)

    @property
    def up_to_reserved(self) -> int | None:
        """The same for a query that began ahead of the stream: up to its position, and the entries reserved above it.
        None: unknown, or the stream no longer has an entry below the position."""
        begun, reserved = (self.position, 0) if self.reserved is None else (self.logged_at, self.reserved)
        up_to = None if held_above(self.head, begun) is not None else self._up_to(begun)
        return None if up_to is None else up_to + reserved

    def _up_to(self, position: StreamId) -> int | None:
        held = held_above(self.head, position)
        return self.ask(position) if held is None or self.head.added is None else self.head.added - held


@dataclass(frozen=True)
class Balance:
    """Result of an account. count: at the group's position, None: unknown until the group has read all entries; lost:
    entries above it that are lost and were not reported before; jumps_at: see Known."""

    count: Count | None
    lost: int = 0
    jumps_at: StreamId | None = None


def held_above(head: StreamState, position: StreamId) -> int | None:
    """Return how many entries the stream has above a position; None: unknown."""
    if head.length == 0 or position >= head.last:
        return 0
    return head.length if head.first is not None and head.first > position else None


def expected_count(run_count: Known, head: StreamState, state: GroupState) -> Known | None:
    """Return the new account of a stream that only this query reads, and of which nothing is missing: it has had as
    many entries as the query has read and the stream has above its group. None: `balance` must decide.

    Nearly all streams of nearly all triggers are so. The result is that of `balance`, in a fifth of the time."""
    count, added, position = run_count.counts, head.added, state.last_delivered
    if count is None or added is None or added < count.added or count[3:] != _NO_FLAGS:
        return None
    if state.has_others or not state.counted or state.entries_read is None:
        return None
    if position > head.last or run_count.jumps_at is not None:
        return None
    held = held_above(head, position)
    if count.read < state.entries_read or (held is not None and added - held != count.read):
        return None
    missed = count.read - state.entries_read
    if missed and held is not None and state.lag is not None and state.lag - held < missed:
        return None
    return Known(Count(count.read, added, missed), position, None, run_count.unlogged)


def balance(facts: StreamFacts) -> Balance:
    """Compute the account of one stream."""
    head, added = facts.head, facts.head.added
    if added is None:
        return Balance(None)
    known_count = _last_count(facts, added)
    if facts.is_joining and facts.run.counts is None:
        count = _joined(facts, added)
    elif facts.is_shared:
        count = _shared(facts, added, known_count)
    else:
        count = _own(facts, added, known_count)
    if count is None:
        return Balance(None)
    if facts.position > head.last or count.ahead:
        # The query began above all entries that its stream had, so entries added below are not for it. If they are
        # trimmed before a snapshot has them, they count as lost, like entries above.
        read = facts.up_to if facts.position > head.last else facts.up_to_reserved
        count = count if read is None else count._replace(read=read)
    return _balanced(facts, added, count, _missing(facts, added, count))


def _missing(facts: StreamFacts, added: int, count: Count) -> int:
    return 0 if facts.held is None else max(0, added - facts.held - count.read)


def _balanced(facts: StreamFacts, added: int, count: Count, lost: int) -> Balance:
    """Return the balance with this loss reported."""
    held, state, jumps_at = facts.held, facts.state, facts.run.jumps_at
    read = count.read if held is None else added - held
    missed = count.missed if state.entries_read is None else read - state.entries_read
    if missed > 0 and held is not None and state.lag is not None and state.lag - held < missed:
        jumps_at = facts.position
    return Balance(Count(read, added, missed, count.shared, facts.position > facts.head.last), lost, jumps_at)


def _joined(facts: StreamFacts, added: int) -> Count | None:
    """Return the count of a group when the query first meets it. Entries that the group has missed by then are no loss
    of the query, although the server may not count them as read."""
    server_count = facts.state.entries_read
    was_trimmed = facts.head.length < added
    read = facts.up_to if was_trimmed or server_count is None else server_count
    if read is None:
        return None
    return Count(read, added, 0 if server_count is None else read - server_count, facts.is_shared)


def _last_count(facts: StreamFacts, added: int) -> Count | None:
    """Return the count of this run, or of the checkpoint. None: it belongs to an earlier stream of this name."""
    count = facts.run.counts
    return None if count is None or added < count.added else count


def _shared(facts: StreamFacts, added: int, known_count: Count | None) -> Count | None:
    """Return the count of a shared group. Only the server counts what other consumers have read, but the number of
    entries up to a position does not change."""
    server_count = facts.state.entries_read
    if server_count is None or not facts.state.counted:  # an estimate counts trimmed entries as read
        before = _at_this_position(facts, known_count)
        if before is not None or server_count is None:
            return None if before is None else Count(before, added, shared=True)
    read = server_count + (0 if known_count is None else known_count.missed)
    if facts.run.counts is not None and read < facts.run.counts.read:
        # A replica of Redis 7.0 became the master: it does not have the groups' entries-read (FACTS R90).
        if facts.up_to is None:
            return None
        read = facts.up_to
    return Count(read, added, read - server_count, shared=True)


def _at_this_position(facts: StreamFacts, known_count: Count | None) -> int | None:
    if known_count is not None and facts.run.position == facts.position:
        return known_count.read
    logged = facts.logged
    if logged is None or logged.shared or facts.logged_at != facts.position:
        return None
    return None if facts.head.added is None or facts.head.added < logged.added else logged.read + facts.run.unlogged


def _own(facts: StreamFacts, added: int, known_count: Count | None) -> Count | None:
    """Return the count of a group that no other consumer reads from. If another client has moved it below the
    checkpoint, the known counts belong to another position."""
    if known_count is None or known_count.shared:
        return _first(facts, added, 0 if known_count is None else known_count.missed)
    if facts.position < facts.logged_at:
        return _first(facts, added, 0)
    if facts.reserved is None:
        return known_count
    logged = facts.logged or known_count
    if logged.shared:
        return known_count
    return logged._replace(read=logged.read + facts.reserved + facts.run.unlogged)


def _first(facts: StreamFacts, added: int, missed: int) -> Count | None:
    """Return the server's count, if this run and the checkpoint have none."""
    head, server_count = facts.head, facts.state.entries_read
    read = None if server_count is None else server_count + missed
    if read is None or (head.length and facts.position >= head.last):
        # The group has read all entries, or its past is unknown: its losses are older than the query.
        return None if facts.up_to is None else Count(facts.up_to, added, missed)
    # An earlier run may have created the group ahead of the stream. Then entries added below it since are not in its
    # count. If all entries below it existed when it was created, it was amid the stream.
    may_be_ahead = not facts.has_token and facts.held is None and not facts.made_amid
    if may_be_ahead and facts.up_to is not None and facts.up_to - (added - head.length) != read:
        read = facts.up_to
    return Count(read, added, missed)
