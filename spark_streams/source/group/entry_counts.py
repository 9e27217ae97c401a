"""How many entries a stream has ever had, up to where the query stands: what is missing of the rest is lost. Pure.

For each stream

    added = read + what the stream holds above the group's position + what is lost and not yet noticed

`added` is the server's count of all XADDs (entries-added); `read` is ours: what was delivered, and what was noticed to
be lost. It travels with the checkpoint, so the server's own count of what a group has read (entries-read), which XDEL
ahead of the group, XGROUP SETID and XGROUP CREATE at an id make it forget, is asked only where we know nothing, or
where others read from the group, too. What the stream holds above the position is known at two moments: when the
group has read all there is, and when the stream begins above the position. Trimming takes the oldest entries first, so
what is trimmed unread is noticed at once; what is deleted (XDEL) amid unread entries, when the
group has come to the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.ids import StreamId
from spark_streams.source.entry_count import Count
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.group.group_state import GroupState
from spark_streams.wire.xinfo import StreamState


def held_above(head: StreamState, position: StreamId) -> int | None:
    """How many entries the stream holds above a position; None where that cannot be told."""
    if head.length == 0 or position >= head.last:
        return 0
    return head.length if head.first is not None and head.first > position else None


class Counts:
    """What is known of the streams of one query; `of`: per stream, at its group's position."""

    def __init__(self) -> None:
        self.of: dict[str, Count] = {}
        self._jumps: dict[str, StreamId] = {}  # where groups stand whose server makes good what `missed` is about

    def lost(self, stream: str, head: StreamState, position: StreamId) -> int:
        """Entries that are lost above the position, and not noticed before."""
        known, held = self.of.get(stream), held_above(head, position)
        if known is None or held is None or head.added is None:
            return 0
        return max(0, head.added - held - known.read)

    def balance(self, stream: str, head: StreamState, state: GroupState) -> None:
        """What `lost` has said is noticed now."""
        known, held = self.of.get(stream), held_above(head, state.last_delivered)
        if known is None or head.added is None:
            return
        read = known.read if held is None else head.added - held
        missed = known.missed if state.entries_read is None else read - state.entries_read
        self.of[stream] = Count(read, head.added, missed, known.shared, state.last_delivered > head.last)
        if missed > 0 and held is not None and state.lag is not None and state.lag - held < missed:
            self._jumps[stream] = state.last_delivered

    def moved(self, stream: str, position: StreamId) -> None:
        """The group may stand elsewhere. Newer servers count what was trimmed unread as read when the group reads on,
        older ones never do (FACTS R16)."""
        known, jumped_at = self.of.get(stream), self._jumps.get(stream, position)
        if position > jumped_at:
            del self._jumps[stream]
            if known is not None:
                self.of[stream] = known._replace(missed=0)

    def took(self, ranges: Iterable[EntryRange]) -> None:
        """These were delivered, or are to be read. How many entries an estimated range has, its tasks tell."""
        for entries in ranges:
            known = self.of.get(entries.stream)
            if known is not None and entries.counted:
                self.of[entries.stream] = known._replace(read=known.read + entries.count)
            elif known is not None:
                self.of[entries.stream] = known._replace(before=True)

    def share(self, stream: str) -> None:
        """Others read from its group, too."""
        known = self.of.get(stream)
        if known is not None:
            self.of[stream] = known._replace(shared=True)

    def forget(self, stream: str) -> Count | None:
        """Nothing is known of it any more; what was."""
        return self.of.pop(stream, None)
