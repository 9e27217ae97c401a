"""How many entries the streams have ever had, up to where the query stands: what is missing of the rest is lost. Pure,
but for one question that may have to be asked.

For each stream

    added = read + what the stream holds above the group's position + what is lost and not yet noticed

`added` is the server's count of all XADDs (entries-added). `read` is ours: what was delivered, and what was noticed to
be lost. It travels with the checkpoint. So the server's own count of what a group has read (entries-read), which XDEL
ahead of the group, XGROUP SETID and XGROUP CREATE at an id make it forget, is asked only if nothing else is known, or
if others read from the group, too. How many entries were read is a property of a position: a group that stands where
the checkpoint stands has read what the checkpoint says, whatever the server has forgotten.

What the stream holds above the position is known at two moments: when the group has read all there is, and when the
stream begins above the position. Trimming takes the oldest entries first, so what is trimmed unread is noticed at once;
what is deleted (XDEL) amid unread entries, when the group has come to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.finding import Finding, Kind, Start
from spark_streams.source.findings.group_state import GroupState, Reserved
from spark_streams.source.findings.snapshot import Snapshot
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Count, Offset
from spark_streams.wire.replies.xinfo import StreamState

# Asks the server how many entries a stream has ever had up to a position; None: nobody can tell.
CountUpTo = Callable[[str, StreamState, StreamId], int | None]


@dataclass(frozen=True)
class Known:
    """What a run knows of one stream. count: at its group's position; None: nothing. at: that position, if nobody has
    read since. jumps_at: the position, if the server counts what is lost above it as read when the group reads on.
    Newer servers do, older ones never (FACTS R16). unlogged: entries that `count` has as lost, and no offset yet."""

    count: Count | None = None
    at: StreamId | None = None
    jumps_at: StreamId | None = None
    unlogged: int = 0


NOTHING = Known()


@dataclass(frozen=True)
class Books:
    """What is known of one stream when its account is drawn up.

    state: its group. run: what this run knows. logged: what the checkpoint knows, at `logged_at`. reserved: how many
    entries above the checkpoint are reserved for the query; None: what this run knows holds. has_token: there is a
    checkpoint. is_shared: others read from the group. made_amid: this run has made the group, at an entry that the
    stream had. ask: the server, how many entries the stream has ever had up to a position; None: nobody can tell.
    estimate: the count at the checkpoint, if it is only estimated and the tasks' notes are gone.
    """

    head: StreamState
    state: GroupState
    ask: Callable[[StreamId], int | None]
    run: Known = NOTHING
    logged: Count | None = None
    logged_at: StreamId = MIN_ID
    reserved: int | None = None
    has_token: bool = True
    is_shared: bool = False
    made_amid: bool = False
    estimate: int | None = None

    @property
    def position(self) -> StreamId:
        """The group's."""
        return self.state.last_delivered

    @property
    def held(self) -> int | None:
        """How many entries the stream holds above the position; None: that cannot be told."""
        return held_above(self.head, self.position)

    @cached_property
    def up_to(self) -> int | None:
        """How many entries the stream has ever had up to the position; None: nobody can tell."""
        return self._up_to(self.position)

    @property
    def up_to_reserved(self) -> int | None:
        """The same of a query that began ahead of the stream, in what was added since: up to where it stands, and what
        is reserved for it above. None: nobody can tell, or nothing that was added below it is left."""
        begun, reserved = (self.position, 0) if self.reserved is None else (self.logged_at, self.reserved)
        there = None if held_above(self.head, begun) is not None else self._up_to(begun)
        return None if there is None else there + reserved

    def _up_to(self, position: StreamId) -> int | None:
        held = held_above(self.head, position)
        return self.ask(position) if held is None or self.head.added is None else self.head.added - held


@dataclass(frozen=True)
class Balance:
    """count: what is known at the group's position; None: nobody can tell until the group has come to the end. lost:
    entries above it that are lost, and were not noticed before. jumps_at: see Known."""

    count: Count | None
    lost: int = 0
    jumps_at: StreamId | None = None


@dataclass(frozen=True)
class Account:
    """What a run knows of its streams. Each step returns it as it is then."""

    of: Mapping[str, Known] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, Count]:
        """What is known of each stream, at its group's position."""
        return {stream: known.count for stream, known in self.of.items() if known.count is not None}

    def held(
        self,
        begin: Offset,
        snapshot: Snapshot,
        above: Mapping[str, int] | None,
        member: Membership,
        made: Mapping[str, Start],
        count_up_to: CountUpTo,
    ) -> tuple[Account, list[Finding]]:
        """Hold what the streams have against what was read of them: what is missing is lost.

        above: how many entries are reserved above the checkpoint, where only that is known; None: go on from what this
        run knows. made: where this run has made groups. count_up_to: called only if nothing else tells.
        """
        found, lost = dict(self.of), []
        for stream, state in snapshot.groups.items():
            assert state is not None
            head, start = snapshot.heads[stream], made.get(stream)
            books = Books(
                head,
                state,
                partial(count_up_to, stream, head),
                _moved(found.get(stream, NOTHING), state.last_delivered),
                begin.counts.get(stream),
                begin[stream],
                None if above is None else above.get(stream, 0),
                bool(begin.token),
                state.is_shared(member),
                start is not None and start.position == state.last_delivered and start.amid,
                _estimate(begin, stream),
            )
            drawn = balance(books)
            at = None if drawn.count is None else state.last_delivered
            found[stream] = Known(drawn.count, at, drawn.jumps_at, books.run.unlogged + drawn.lost)
            if drawn.lost:
                lost.append(_entries_lost(stream, drawn.lost, state.last_delivered))
        return Account(found), lost

    def told(self, states: Mapping[str, GroupState]) -> dict[str, GroupState]:
        """The groups, with how many entries they have read where the server does not tell. If others read from one,
        too, only the server may say so."""
        found = dict(states)
        for stream, count in self.counts.items():
            state = found.get(stream)
            if state is not None and (state.stands is not None or (state.entries_read is None and not count.shared)):
                found[stream] = state._replace(entries_read=count.read)
        return found

    def took(self, ranges: Iterable[EntryRange]) -> Account:
        """These were delivered, or are to be read. How many entries an estimated range has, its tasks tell."""
        found = dict(self.of)
        for entries in ranges:
            known = found.get(entries.stream, NOTHING)
            count = known.count
            if count is not None:
                read = count.read + entries.count
                count = count._replace(read=read) if entries.counted else count._replace(before=True)
            found[entries.stream] = replace(known, count=count, at=None)
        return Account(found)

    def reserved(
        self,
        heads: Mapping[str, StreamState],
        before: Mapping[str, GroupState],
        reserved: Reserved,
        member: Membership,
    ) -> tuple[Account, list[Finding]]:
        """These were delivered. What a stream held at the last look and the group was not given when it had come to
        the end of that is lost. A group that got nothing has come to the end; a bookmark (noAck) has come to where the
        batch ends, above which an AvailableNow run does not read. heads, before: the streams and the groups at the last
        look."""
        found, lost = dict(self.took(reserved.ranges).of), []
        ends = {entries.stream: entries.last for entries in reserved.ranges}
        for stream, state in reserved.states.items():
            known = found[stream] = _moved(found.get(stream, NOTHING), state.last_delivered)
            count, head = known.count, heads[stream]
            if count is None:
                continue
            if state.is_shared(member):
                found[stream] = replace(known, count=count._replace(shared=True))
                continue
            end = head.last if state.stands is None else state.last_delivered
            if ends.get(stream, end) == head.last and not count.before and head.added is not None:
                missed = _unread(count, head.added)
                # More was read than was ever added: of a bookmark, that shows the next diagnosis that the server came
                # back from an older state.
                read = head.added if state.stands is None else max(count.read, head.added)
                count = count._replace(read=read, missed=count.missed + missed)
                found[stream] = replace(known, count=count, unlogged=known.unlogged + missed)
                if missed:
                    lost.append(_entries_lost(stream, missed, before[stream].last_delivered))
        return Account(found), lost

    def logged(self) -> Account:
        """The next offset has what is counted so far."""
        return Account({stream: replace(known, unlogged=0) for stream, known in self.of.items()})

    def know(self, counts: Mapping[str, Count]) -> Account:
        """What the checkpoint knows, of streams of which this run does not know more."""
        better = {stream: one for stream, one in self.counts.items() if not one.before or stream not in counts}
        return self._with({**counts, **better})

    def share(self, streams: Collection[str]) -> Account:
        """Others have read from their groups, too."""
        return self._with({s: count._replace(shared=True) for s, count in self.counts.items() if s in streams})

    def forget(self, streams: Collection[str]) -> Account:
        """What was read of these up to where their groups stand is not known."""
        return Account({stream: known for stream, known in self.of.items() if stream not in streams})

    def at_checkpoint(self, remaining: Mapping[str, int]) -> dict[str, Count]:
        """What is known, for the checkpoint. remaining: how many entries of each stream are reserved above it."""
        return {s: count._replace(read=count.read - remaining.get(s, 0)) for s, count in self.counts.items()}

    def _with(self, counts: Mapping[str, Count]) -> Account:
        new = {stream: replace(self.of.get(stream, NOTHING), count=count) for stream, count in counts.items()}
        return Account({**self.of, **new})


def _estimate(checkpoint: Offset, stream: str) -> int | None:
    """The count at the checkpoint's position by the planned size of its last batch, if no exact one is known."""
    count, share = checkpoint.counts.get(stream), checkpoint.shares.get(stream)
    return None if count is None or not count.before or share is None else count.read + share.count


def _moved(known: Known, position: StreamId) -> Known:
    """The group may stand elsewhere: what the server had yet to count as read, it has counted now."""
    if known.jumps_at is None or position <= known.jumps_at:
        return known
    count = None if known.count is None else known.count._replace(missed=0)
    return replace(known, count=count, jumps_at=None)


def _unread(count: Count, added: int) -> int:
    return max(0, added - count.read)


def _entries_lost(stream: str, entries: int, above: StreamId) -> Finding:
    return Finding(Kind.ENTRIES_LOST, stream, above=above, lost=entries)


def held_above(head: StreamState, position: StreamId) -> int | None:
    """How many entries the stream holds above a position; None where that cannot be told."""
    if head.length == 0 or position >= head.last:
        return 0
    return head.length if head.first is not None and head.first > position else None


def balance(books: Books) -> Balance:
    """Draw up the account of one stream."""
    head, added = books.head, books.head.added
    if added is None:
        return Balance(None)
    known = _known(books, added)
    count = _shared(books, added, known) if books.is_shared else _own(books, added, known)
    if count is None:
        return Balance(None)
    if books.position > head.last or count.ahead:
        # The query began above all that its stream had so far: what is added below it is none of ours. If that is
        # trimmed before it was seen, it counts as lost: nobody can tell it from what lay above.
        read = books.up_to if books.position > head.last else books.up_to_reserved
        count = count if read is None else count._replace(read=read)
    return _balanced(books, added, count, _missing(books, added, count))


def _missing(books: Books, added: int, count: Count) -> int:
    return 0 if books.held is None else max(0, added - books.held - count.read)


def _balanced(books: Books, added: int, count: Count, lost: int) -> Balance:
    """The count once the loss is noticed."""
    held, state, jumps_at = books.held, books.state, books.run.jumps_at
    read = count.read if held is None else added - held
    missed = count.missed if state.entries_read is None else read - state.entries_read
    if missed > 0 and held is not None and state.lag is not None and state.lag - held < missed:
        jumps_at = books.position
    return Balance(Count(read, added, missed, count.shared, books.position > books.head.last), lost, jumps_at)


def _known(books: Books, added: int) -> Count | None:
    """What this run knows, or the checkpoint; None, if that was of another stream under this name."""
    known = books.run.count
    if known is not None and known.before:  # the tasks have told since
        known = books.logged
    return None if known is None or added < known.added else known


def _shared(books: Books, added: int, known: Count | None) -> Count | None:
    """Only the server can tell what others have read; but what was read up to a position does not change."""
    told = books.state.entries_read
    if told is None or not books.state.counted:  # an estimate takes what was trimmed for read
        before = _at_this_position(books, known)
        if before is not None or told is None:
            return None if before is None else Count(before, added, shared=True)
    read = told + (0 if known is None else known.missed)
    if books.run.count is not None and read < books.run.count.read:
        # A replica of Redis 7.0 became the master: it was not told what groups have read (FACTS R90).
        if books.up_to is None:
            return None
        read = books.up_to
    return Count(read, added, read - told, shared=True)


def _at_this_position(books: Books, known: Count | None) -> int | None:
    if known is not None and books.run.at == books.position:
        return known.read
    logged = books.logged
    if logged is None or logged.shared or logged.before or books.logged_at != books.position:
        return None
    return None if books.head.added is None or books.head.added < logged.added else logged.read + books.run.unlogged


def _own(books: Books, added: int, known: Count | None) -> Count | None:
    """Nobody else reads from the group. If somebody has moved it below the checkpoint since it was set there, what is
    known is of another position."""
    if books.estimate is not None and books.held is not None and not books.state.counted:
        # Somebody has made the group again. The server's own count takes what was trimmed since for read.
        return Count(min(books.estimate, added - books.held), added)
    if known is None or known.shared or known.before:
        return _first(books, added, 0 if known is None else known.missed)
    if books.position < books.logged_at:
        return _first(books, added, 0)
    if books.reserved is None:
        return known
    logged = books.logged or known
    if logged.shared or logged.before:
        return known
    return logged._replace(read=logged.read + books.reserved + books.run.unlogged)


def _first(books: Books, added: int, missed: int) -> Count | None:
    """What the server says, if this run and the checkpoint know nothing."""
    head, told = books.head, books.state.entries_read
    read = None if told is None else told + missed
    if read is None or (head.length and books.position >= head.last):
        # The group has read all there is, or its past is not known: what it has missed was before our time.
        return None if books.up_to is None else Count(books.up_to, added, missed)
    # An earlier run may have made it, ahead of the stream: then what was added below it since is not in its count. It
    # was amid the stream if all that lies below it was there when it was made.
    may_be_ahead = not books.has_token and books.held is None and not books.made_amid
    if may_be_ahead and books.up_to is not None and books.up_to - (added - head.length) != read:
        read = books.up_to
    return Count(read, added, missed)
