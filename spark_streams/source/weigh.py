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

    def weigh(self, entries: EntryRange, room: int, first: int) -> Weighed:
        """The first of these entries, `entries.count` at most, that have up to `room` bytes together. first: how many
        bytes the first of them may have, which may be more than there is room for.

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
            if fitting == 0 and count == 0 and page.rows and sizes[0] <= first:
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
    """The bytes that one batch may still take. An entry above the limit fits only into an empty batch, and nothing
    fits behind it."""

    def __init__(self, scales: Scales, size: int) -> None:
        self._scales = scales
        self.left = size
        self.is_empty = True

    @property
    def is_spent(self) -> bool:
        """Whether nothing more fits."""
        return self.left <= 0 and not self.is_empty

    def take(self, entries: EntryRange, part: int | None = None) -> Weighed:
        """The first of these entries that fit, in `part` bytes of what is left (None: all of it). An empty batch takes
        the first entry whatever its size, unless only a part of it is meant."""
        if self.is_spent:
            return Weighed(0, entries.after, 0, is_all=False)
        room = max(0, self.left if part is None else min(part, self.left))
        weighed = self._scales.weigh(entries, room, _ENDLESS if self.is_empty and part is None else room)
        self.left -= weighed.size
        self.is_empty = self.is_empty and weighed.count == 0
        return weighed

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
        """How many entries of each stream to take. Each has its part of the bytes, by weight, and what others leave.

        Streams take turns at being favoured: if the favoured stream's first entry is larger than its part, this entry
        is taken first. The others share what it leaves, which is nothing if it is above the limit.
        """
        favoured = sorted(wanted)[turn % len(wanted)] if wanted else ""
        left, is_empty = self.left, self.is_empty
        found, waits = self._shared(wanted, weight)
        if favoured in waits or (self.is_empty and waits):
            self.left, self.is_empty = left, is_empty
            named = favoured if favoured in waits else min(waits)
            one = self.take(replace(wanted[named], count=1)).count
            others = {stream: entries for stream, entries in wanted.items() if stream != named}
            found = {named: one, **self._shared(others, weight)[0]}
        return {stream: count for stream, count in found.items() if count}

    def _shared(
        self, wanted: Mapping[str, EntryRange], weight: Callable[[str], int]
    ) -> tuple[dict[str, int], set[str]]:
        """How many entries of each stream fit into its part, and which streams' first entries are larger than that."""
        waiting = sorted(wanted, key=lambda stream: (wanted[stream].count, stream))
        weights = sum(map(weight, waiting))
        found: dict[str, int] = {}
        for stream in waiting:
            part = max(self.left, 0) * weight(stream) // weights
            weights -= weight(stream)
            weighed = self.take(wanted[stream], part)
            # If no entry is left, the group is to find that out.
            found[stream] = wanted[stream].count if weighed.is_all and not weighed.count else weighed.count
        return found, {stream for stream, count in found.items() if not count}
