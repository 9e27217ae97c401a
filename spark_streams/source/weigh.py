"""maxBytesPerTrigger: how large entries are, before they are taken. They are read once more for that (XRANGE, as a task
reads them), a page at a time and for nothing but their lengths.

Bytes are those of field names and values: of what a task gets to hold, without what the protocol puts around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from spark_streams.ids import StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.task.fetcher import Fetch
from spark_streams.wire.address import Address
from spark_streams.wire.entries.entry_page import EntryPage
from spark_streams.wire.entries.lines import Index
from spark_streams.wire.session import Session

_ENDLESS = 1 << 62
_LEAST_PAGE = 64 << 10  # bytes that are read together, however little room there is


@dataclass(frozen=True)
class Weighed:
    """The first entries of a range that fit: how many, the last one's id, their bytes. is_all: none of as many as the
    range counts is left out."""

    count: int
    last: StreamId
    size: int
    is_all: bool


class Scales:
    """Weighs entries over a connection of its own, made when first needed. Not for two threads at once."""

    def __init__(self, address: Address, member: Membership, limits: Limits) -> None:
        self._session = Session(address, is_known=True)
        self._member = member
        self._limits = limits

    def weigh(self, entries: EntryRange, room: int, at_least_one: bool) -> Weighed:
        """The first of these entries, `entries.count` at most, that have up to `room` bytes together. at_least_one: the
        first one in any case.

        Raises GroupMissingError, ServerError, RetriesExhaustedError.
        """
        limits = replace(self._limits, page_bytes=min(self._limits.page_bytes, max(room, _LEAST_PAGE)))
        fetch = Fetch(self._session, self._member, [entries], deliveries=False, limits=limits)
        count = size = 0
        last = entries.after
        for page in fetch.pages():
            sizes = sizes_of(page.entries)
            wanted = min(page.rows, entries.count - count)  # a range may have more than its count
            fitting = int(np.searchsorted(np.cumsum(sizes), room - size, side="right"))
            if fitting == 0 and count == 0 and at_least_one:
                fitting = 1
            taken = min(fitting, wanted)
            count += taken
            size += int(sizes[:taken].sum())
            if taken:
                last = StreamId.parse(page.entries.ids()[taken - 1].as_py())
            if taken < wanted or count == entries.count:
                if not page.ended:
                    self._session.close()  # the next page is on its way
                return Weighed(count, last, size, is_all=taken == wanted)
        return Weighed(count, entries.last, size, is_all=True)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


def sizes_of(entries: EntryPage) -> Index:
    """int64: the bytes of each entry's names and values."""
    offsets, names, values = entries.fields()
    lengths = [pc.fill_null(pc.binary_length(one), 0).to_numpy(zero_copy_only=False) for one in (names, values)]
    up_to = np.zeros(len(names) + 1, np.int64)
    np.cumsum(np.add(*lengths, dtype=np.int64), out=up_to[1:])
    at = offsets.to_numpy(zero_copy_only=False)
    sizes: Index = up_to[at[1:]] - up_to[at[:-1]]
    return sizes


class Budget:
    """The bytes that one batch may still take, and whether it has an entry yet: the first one it may always take."""

    def __init__(self, scales: Scales, size: int) -> None:
        self._scales = scales
        self.left = size
        self.is_empty = True

    @property
    def is_spent(self) -> bool:
        """Whether nothing more fits."""
        return self.left <= 0 and not self.is_empty

    def take(self, entries: EntryRange, part: int | None = None, at_least_one: bool = False) -> Weighed:
        """The first of these entries, up to `part` of what is left (None: all of it)."""
        room = self.left if part is None else min(part, self.left)
        weighed = self._scales.weigh(entries, max(room, 0), at_least_one or (self.is_empty and part is None))
        self.left -= weighed.size
        self.is_empty = self.is_empty and weighed.count == 0
        return weighed

    def note(self, entries: EntryRange) -> None:
        """These are taken already, all of them."""
        self.left -= self._scales.weigh(entries, _ENDLESS, at_least_one=True).size
        self.is_empty = False

    def first_of(self, ranges: Sequence[EntryRange]) -> list[EntryRange]:
        """The first of these ranges, the last of them as far as it fits."""
        kept: list[EntryRange] = []
        for entries in ranges:
            weighed = self.take(entries)
            if weighed.is_all:
                kept.append(entries)
                continue
            if weighed.count:
                kept.append(replace(entries, last=weighed.last, count=weighed.count))
            break
        return kept

    def share(self, wanted: Mapping[str, EntryRange], weight: Callable[[str], int], turn: int) -> dict[str, int]:
        """How many entries of each stream to take. Each has its part of the bytes, by weight, and what others leave;
        streams take turns at having one entry at least, however large."""
        waiting = sorted(wanted, key=lambda stream: (wanted[stream].count, stream))
        favoured = sorted(wanted)[turn % len(wanted)] if wanted else ""
        weights = sum(map(weight, waiting))
        found: dict[str, int] = {}
        for stream in waiting:
            part = max(self.left, 0) * weight(stream) // weights
            weights -= weight(stream)
            weighed = self.take(wanted[stream], part, at_least_one=stream == favoured)
            # Where no entry is left the group is to find that out.
            found[stream] = wanted[stream].count if weighed.is_all and not weighed.count else weighed.count
        for stream in waiting:  # the favoured one's entries are gone, and the others' first ones are beyond their parts
            if self.is_empty and not found[stream]:
                found[stream] = self.take(wanted[stream], 0, at_least_one=True).count
        return {stream: count for stream, count in found.items() if count}
