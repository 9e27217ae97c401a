"""Facts of the design: what the checkpoint and the server keep, and the pure functions that compare them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.source.commit_mark import Mark


class Range(NamedTuple):
    """Entries of our pending list with after < ID <= last that were delivered to us at `until` at the latest (server
    time, ms; 0: at any time). count: how many they were when the batch was made. Entries that are handed over later
    have a later time of delivery: they are not of the batch."""

    after: StreamId
    last: StreamId
    count: int = 0
    until: int = 0

    def __str__(self) -> str:
        return f"{self.after} {self.last} {self.count} {self.until}"

    @classmethod
    def parse(cls, value: str) -> Range:
        """Parse the text that `str` returns."""
        after, last, count, until = value.split(" ")
        return cls(StreamId.parse(after), StreamId.parse(last), int(count), int(until))


def next_token(checkpoint: str) -> str:
    """Return a name for the next batch of a checkpoint."""
    return f"{checkpoint}-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Offset:
    """What Spark's offset log keeps of a stream at the end of a batch.

    position: the batch ends here; read: entries ever added up to `position`, None if the group is shared; missed:
    entries lost in a shared group, which some servers never add to entries-read; added: entries ever added to the
    stream; number, token: name of the batch; new: its entries above the previous position; old: its entries at or
    below it; owed: `new` of the batch before, if that was not acknowledged when this offset was made; left: old entries
    may be pending that no batch has;
    guarded: maxDeliveries is set, so only the record proves that the batch was read; checkpoint: its name, "": Spark
    has logged no batch, and number and token are those of the mark at which the query begins."""

    position: StreamId
    read: int | None
    added: int
    number: int
    token: str
    missed: int = 0
    group_read: int = 0
    new: Range | None = None
    old: tuple[Range, ...] = ()
    owed: Range | None = None
    left: bool = True
    guarded: bool = False
    checkpoint: str = ""

    @property
    def ranges(self) -> list[Range]:
        """All entries of the batch."""
        return [*self.old, *([self.new] if self.new else [])]

    def account(self) -> Offset:
        """Return the offset without the entries of its batch."""
        return replace(self, new=None, old=(), owed=None)

    def mark(self) -> Mark:
        """The mark of the batch."""
        if not self.checkpoint and not self.number:
            return Mark.at_begin(self.position, self.read)
        return Mark(self.position, self.number, self.token)


@dataclass(frozen=True)
class Look:
    """State of stream, group and mark at one moment (one MULTI). exists, has_group: if not, the rest is empty."""

    exists: bool
    has_group: bool = False
    length: int = 0
    added: int = 0
    first: StreamId = MIN_ID  # of the entries that exist; MIN_ID: there is none
    top: StreamId = MIN_ID  # the last entry that exists
    last: StreamId = MIN_ID  # last generated ID
    deleted: StreamId = MIN_ID  # highest ID that XDEL has removed
    delivered: StreamId = MIN_ID  # D
    entries_read: int | None = None
    is_member: bool = False  # whether the group has our consumer
    ours: int = 0  # entries pending for our consumer
    released: int = 0  # entries pending for no consumer (XNACK)
    others: tuple[tuple[str, int], ...] = ()  # other consumers, with their numbers of pending entries
    mark: Mark | None = None
    time: int = 0  # of the server, ms

    @property
    def until(self) -> int:
        """When what is pending was delivered at the latest; 0: at any time, because nobody can hand entries over."""
        return 0 if self.is_member and not self.others and not self.released else self.time


def is_older(start: Offset, mark: Mark | None) -> bool:
    """Whether the mark knows a batch that the checkpoint does not have: the checkpoint is an older copy."""
    return (
        mark is not None
        and not mark.is_seek
        and mark.token != start.token
        and (mark.number > start.number or mark.number == start.number > 0)
    )


def is_unmarked(start: Offset, look: Look) -> bool:
    """Whether the mark is gone, so that nobody knows whether the checkpoint is an older copy."""
    return look.mark is None and start.number > 0 and bool(start.checkpoint) and look.is_member


def unacknowledged(start: Offset, mark: Mark | None) -> list[Range]:
    """The ranges that may still be pending although `start` is committed: none if the mark knows its batch. If the mark
    is behind, these are all of our entries up to the position, unless old ones may be left that no batch has."""
    if mark is not None and mark.token == start.token:
        return []
    if start.number and not start.left and (mark is None or mark.number < start.number):
        return [Range(MIN_ID, start.position)]
    return [*([start.owed] if start.owed else []), *start.ranges]


def ordinal_in_shared_group(start: Offset, look: Look) -> int | None:
    """How many entries were ever added up to D: by our own count if nobody has read since the checkpoint, or as the
    server knew it before somebody has set D without it."""
    is_there = look.delivered == start.position
    if start.read is not None and is_there:
        return start.read
    if look.entries_read is None:
        return (start.group_read or Mark(start.position, start.number, start.token).read_at_begin) if is_there else None
    return look.entries_read + start.missed


def moved_since(start: Offset, look: Look) -> Offset | None:
    """Return where the query goes on if the mark says that its group was moved since the checkpoint: by an operator, or
    by a run that was killed before Spark logged the new position. None: it was not moved."""
    mark = look.mark
    if mark is None or not look.has_group:
        return None
    is_of_last_batch = mark.token == start.token or mark.number == start.number == 0
    if not (mark.is_seek or is_of_last_batch):
        return None
    before = start
    if start.number or not mark.is_seek:  # numbers go on after that of a seek, or of an older copy
        start = replace(start, number=max(start.number, mark.number))
    if mark.id == start.position:
        return start.account() if (mark.is_seek and start.checkpoint) or start != before else None
    is_there = look.delivered == mark.id and not look.others
    added = start.added if mark.is_seek else min(start.added, look.added)
    read = look.entries_read if is_there else None
    return replace(start.account(), position=mark.id, read=read, missed=0, added=added, group_read=0)


def has_forgotten(start: Offset, look: Look) -> bool:
    """Whether the server counts fewer entries that a shared group has read than it did: it was replaced by a replica
    that did not know (Redis 7.0)."""
    is_shared = bool(look.others) or start.read is None
    if not is_shared or look.entries_read is None or look.delivered < start.position:
        return False
    return look.entries_read + start.missed < (start.group_read if start.read is None else start.read)


def recounted(start: Offset, look: Look, count: Callable[[StreamId, Look], tuple[int | None, int]]) -> Offset:
    """Return the same, counted in the stream. Losses of that moment are only noticed if the group is at the checkpoint:
    it has then read no more than by then. count: Source._read_before."""
    missed = count(look.delivered, look)[1]
    if look.delivered == start.position and look.entries_read is not None:
        missed = min(missed, (start.group_read if start.read is None else start.read) - look.entries_read)
    return replace(start, missed=missed)


def at_end(start: Offset, look: Look) -> Offset:
    """Return the same with numbers that the server knows now: at the end of the stream, the number of entries read,
    which is the number of entries added if nobody knows it; and what the server has corrected in its own counter."""
    if not look.has_group or start.read is not None:
        return start
    is_alone = not look.others and not look.released
    if is_alone and start.position == look.delivered >= look.top:
        read = ordinal_in_shared_group(start, look)
        return replace(start, read=look.added if read is None else min(read, look.added))
    if look.entries_read is None:
        return start
    more = min(lost_above(look, look.delivered, look.entries_read + start.missed) or 0, 0)
    return replace(start, missed=start.missed + more)


def lost_above(look: Look, position: StreamId, ordinal: int | None) -> int | None:
    """How many entries above a position have left the stream; ordinal: entries ever added up to the position. None:
    unknown until the position is at the end of the stream. Negative: entries below it are missing, too."""
    if ordinal is None:
        return None
    if look.length == 0 or look.first > position:
        return look.added - ordinal - look.length
    if position >= look.top:
        return look.added - ordinal
    return 0 if look.deleted <= position else None


def runs_of(ids: list[StreamId], suspects: list[Range], until: int) -> list[Range]:
    """Ranges of old entries: from the lowest ID on, divided at ranges under suspicion."""
    runs: list[Range] = []
    after = MIN_ID
    for entry_id in ids:
        walls = [s.last for s in suspects if after < s.last < entry_id]
        if runs and not walls:
            runs[-1] = runs[-1]._replace(last=entry_id, count=runs[-1].count + 1)
        else:
            runs.append(Range(max(walls, default=after), entry_id, 1, until))
        after = entry_id
    return runs


def without(suspects: list, ranges: Iterable[Range]) -> list:
    """Suspects without those of these ranges."""
    known = {(r.after, r.last) for r in ranges}
    return [s for s in suspects if as_range(s)[:2] not in known]


def as_range(suspect: list) -> Range:
    """Return the range of a suspect, as the record keeps it."""
    (a, b), (c, d), count, until = suspect
    return Range(StreamId(a, b), StreamId(c, d), count, until)


def milliseconds(time: list) -> int:
    """Return the reply to TIME in milliseconds."""
    return int(time[0]) * 1000 + int(time[1]) // 1000
