"""How many entries a stream has ever had, up to where the query stands: what is missing of the rest is lost. Pure.

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

from dataclasses import dataclass
from enum import Enum, auto

from spark_streams.ids import MIN_ID, StreamId
from spark_streams.source.entry_count import Count
from spark_streams.source.group.group_state import GroupState
from spark_streams.wire.xinfo import StreamState


class Asks(Enum):
    """What the account lacks."""

    UP_TO = auto()  # how many entries the stream has ever had up to the group's position


@dataclass(frozen=True)
class Books:
    """What is known of one stream when its account is drawn up.

    state: its group. known: what this run knows, at the position `known_at`. logged: what the checkpoint knows, at
    `logged_at`. reserved: how many entries above the checkpoint are reserved for the query; None: what this run knows
    holds. unlogged: entries that were noticed to be lost, and no offset has yet. has_token: there is a checkpoint.
    is_shared: others read from the group. made_amid: this run has made the group, at an entry that the stream had.
    jumps_at: see Balance.
    """

    head: StreamState
    state: GroupState
    known: Count | None = None
    known_at: StreamId | None = None
    logged: Count | None = None
    logged_at: StreamId = MIN_ID
    reserved: int | None = None
    unlogged: int = 0
    has_token: bool = True
    is_shared: bool = False
    made_amid: bool = False
    jumps_at: StreamId | None = None

    @property
    def position(self) -> StreamId:
        """The group's."""
        return self.state.last_delivered

    @property
    def held(self) -> int | None:
        """How many entries the stream holds above the position; None: that cannot be told."""
        return held_above(self.head, self.position)


@dataclass(frozen=True)
class Balance:
    """count: what is known at the group's position; None: nobody can tell until the group has come to the end. lost:
    entries above it that are lost, and were not noticed before. jumps_at: the position, if the server counts them as
    read when the group reads on. Newer servers do, older ones never (FACTS R16)."""

    count: Count | None
    lost: int = 0
    jumps_at: StreamId | None = None


def held_above(head: StreamState, position: StreamId) -> int | None:
    """How many entries the stream holds above a position; None where that cannot be told."""
    if head.length == 0 or position >= head.last:
        return 0
    return head.length if head.first is not None and head.first > position else None


def balance(books: Books, counted: int | Asks | None = Asks.UP_TO) -> Balance | Asks:
    """Draw up the account of one stream. counted: how many entries it has ever had up to the group's position, if that
    was asked; None: nobody can tell."""
    head, added = books.head, books.head.added
    if added is None:
        return Balance(None)
    jumped = books.jumps_at is not None and books.position > books.jumps_at
    known = _known(books, added, jumped)
    count = _shared(books, added, known, counted) if books.is_shared else _own(books, added, known, counted)
    if count is None or isinstance(count, Asks):
        return Balance(None) if count is None else count
    if count.ahead or books.position > head.last:
        read = _read_above_all(books, added, counted)
        if isinstance(read, Asks):
            return read
        count = count if read is None else count._replace(read=read)
    jumps_at = None if jumped else books.jumps_at
    return _balanced(books, added, count, _missing(books, added, count), jumps_at)


def _missing(books: Books, added: int, count: Count) -> int:
    return 0 if books.held is None else max(0, added - books.held - count.read)


def _balanced(books: Books, added: int, count: Count, lost: int, jumps_at: StreamId | None) -> Balance:
    """The count once the loss is noticed."""
    held, state = books.held, books.state
    read = count.read if held is None else added - held
    missed = count.missed if state.entries_read is None else read - state.entries_read
    if missed > 0 and held is not None and state.lag is not None and state.lag - held < missed:
        jumps_at = books.position
    return Balance(Count(read, added, missed, count.shared, books.position > books.head.last), lost, jumps_at)


def _known(books: Books, added: int, jumped: bool) -> Count | None:
    """What this run knows, or the checkpoint; None, if that was of another stream under this name."""
    known = books.known
    if known is not None and jumped:
        known = known._replace(missed=0)
    if known is not None and known.before:  # the tasks have told since
        known = books.logged
    return None if known is None or added < known.added else known


def _up_to(books: Books, added: int, counted: int | Asks | None) -> int | Asks | None:
    """How many entries the stream has ever had up to the group's position."""
    return counted if books.held is None else added - books.held


def _shared(books: Books, added: int, known: Count | None, counted: int | Asks | None) -> Count | Asks | None:
    """Only the server can tell what others have read; but what was read up to a position does not change."""
    told = books.state.entries_read
    if told is None or not books.state.counted:  # an estimate takes what was trimmed for read
        before = _at_this_position(books, known)
        if before is not None or told is None:
            return None if before is None else Count(before, added, shared=True)
    read = told + (0 if known is None else known.missed)
    if books.known is not None and read < books.known.read:
        # A replica of Redis 7.0 became the master: it was not told what groups have read (FACTS R90).
        found = _up_to(books, added, counted)
        if found is None or isinstance(found, Asks):
            return found
        read = found
    return Count(read, added, read - told, shared=True)


def _at_this_position(books: Books, known: Count | None) -> int | None:
    if known is not None and books.known_at == books.position:
        return known.read
    logged = books.logged
    if logged is None or logged.shared or logged.before or books.logged_at != books.position:
        return None
    return None if books.head.added is None or books.head.added < logged.added else logged.read + books.unlogged


def _own(books: Books, added: int, known: Count | None, counted: int | Asks | None) -> Count | Asks | None:
    """Nobody else reads from the group."""
    if known is None or known.shared or known.before:
        return _first(books, added, 0 if known is None else known.missed, counted)
    if books.reserved is None:
        return known
    logged = books.logged or known
    if logged.shared or logged.before:
        return known
    return logged._replace(read=logged.read + books.reserved + books.unlogged)


def _first(books: Books, added: int, missed: int, counted: int | Asks | None) -> Count | Asks | None:
    """What the server says, if this run and the checkpoint know nothing."""
    head, told = books.head, books.state.entries_read
    read = None if told is None else told + missed
    if read is None or (head.length and books.position >= head.last):
        # The group has read all there is, or its past is not known: what it has missed was before our time.
        found = _up_to(books, added, counted)
        return found if found is None or isinstance(found, Asks) else Count(found, added, missed)
    if not books.has_token and books.held is None and not books.made_amid:
        # An earlier run has made it, ahead of the stream maybe: then what was added below it since is not in its
        # count. It was amid the stream if all that lies below it was there when it was made.
        if isinstance(counted, Asks):
            return counted
        if counted is not None and counted - (added - head.length) != read:
            read = counted
    return Count(read, added, missed)


def _read_above_all(books: Books, added: int, counted: int | Asks | None) -> int | Asks | None:
    """A group that stands above all that its stream has had so far: what is added below it is none of ours. If that is
    trimmed before it was seen, it counts as lost: nobody can tell it from what lay above."""
    if books.position > books.head.last or books.held is None:
        return _up_to(books, added, counted)
    return None
