"""Entries that are gone before the query has read them: an error that names them, or counted and passed over.

The server is asked whether the group stands where the query left it. Where `failOnDataLoss` is false, a group that is
gone is made again at the checkpoint, and what was lost is logged and told with the query's progress.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from spark_streams.errors import DataLossError, StreamStateError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.source.group import GroupState, Membership, StreamState, missing
from spark_streams.source.offsets import Offset
from spark_streams.source.plan import Run
from spark_streams.source.start import create_groups_at, set_groups_to
from spark_streams.wire.connection import Connection

_log = logging.getLogger("spark_streams.source")


@dataclass
class Losses:
    """How many entries this run has passed over, per stream; allowed: failOnDataLoss=false."""

    allowed: bool
    counts: dict[str, int] = field(default_factory=dict)
    _unread: dict[str, tuple[StreamId, int]] = field(default_factory=dict)  # already counted: group position, number
    # When last seen: entries ever added to the stream, and how many of them the group had read.
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, stream: str, count: int, why: str) -> None:
        """Count a loss that is allowed."""
        if count:
            self.counts[stream] = self.counts.get(stream, 0) + count
            _log.warning("stream %r: %d entries are lost: %s", stream, count, why)

    def remember(self, heads: Mapping[str, StreamState], states: Mapping[str, GroupState]) -> None:
        """How far each group has come: what it has yet to read is lost if the stream vanishes before the next look."""
        for stream, state in states.items():
            added = heads[stream].added
            if added is not None and state.entries_read is not None:
                self._seen[stream] = (added, state.entries_read)

    def took(self, runs: Iterable[Run]) -> None:
        """These were delivered since."""
        for run in runs:
            if run.stream in self._seen:
                added, read = self._seen[run.stream]
                self._seen[run.stream] = (added, read + run.count)

    def vanished(self, stream: str) -> None:
        """A stream is gone with all that it held."""
        added, read = self._seen.pop(stream, (0, 0))
        self.add(stream, max(0, added - read), "the stream is gone")

    def group_vanished(self, stream: str, head: StreamState, at: StreamId) -> None:
        """A group is gone that stood at `at`. Its stream may stand as it was, or was trimmed meanwhile, or is gone too:
        then `head` is that of another one under its name, or of none."""
        if head.length and head.first is not None and head.first <= at <= head.last:
            return
        added, read = self._seen.get(stream, (0, 0))
        if head.added is None or head.added < added or (read and head.added == head.length):
            self.vanished(stream)
        else:
            gone = max(0, head.added - head.length - read)
            self.add(stream, gone, "trimmed or deleted before the group was made again")

    def newly_trimmed(self, stream: str, head: StreamState, state: GroupState) -> int:
        """Entries that went from the head of the stream before the group came to them, and are not counted yet."""
        gone = trimmed_unread(head, state)
        position, counted = self._unread.get(stream, (state.last_delivered, 0))
        new = gone - counted if position == state.last_delivered else gone
        self._unread[stream] = (state.last_delivered, max(gone, counted))
        return max(0, new)


def trimmed_unread(head: StreamState, state: GroupState) -> int:
    """Entries that went from the head of the stream before the group came to them."""
    if head.first is None or head.added is None or state.entries_read is None:
        return 0
    if not (head.first > state.last_delivered or head.length == 0):
        return 0
    return max(0, head.added - head.length - state.entries_read)


def reconcile(
    server: Connection,
    member: Membership,
    begin: Offset,
    heads: Mapping[str, StreamState],
    states: Mapping[str, GroupState | None],
    losses: Losses,
    ahead: Collection[str] = (),
) -> bool:
    """Hold the groups against the checkpoint; whether one was made or moved, so that they must be looked at again.
    ahead: streams that something was reserved from above it.

    Raises DataLossError, GroupMissingError, StreamStateError where something is lost and that is not allowed.
    """
    made: dict[str, str] = {}
    moved: dict[str, StreamId] = {}
    for stream, state in states.items():
        head, at = heads[stream], begin[stream]
        if state is None:
            if not losses.allowed:
                raise missing(server, member, stream, not head.exists)
            losses.group_vanished(stream, head, at)
            made[stream] = str(at if head.exists and head.last >= at else MIN_ID)
            _log.warning("stream %r: group %r is gone and is made again at %s", stream, member.group, made[stream])
        elif state.last_delivered < at:
            made_anew = losses.allowed and not state.known and not state.others
            if head.last < at and losses.allowed:
                losses.vanished(stream)  # it was emptied, and its ids begin anew
            elif made_anew:
                losses.group_vanished(stream, head, at)
                moved[stream] = at
            else:
                raise StreamStateError(
                    f"group {member.group!r} of stream {stream!r} stands at {state.last_delivered}, below the "
                    f"checkpoint's {at}: it was made anew or set back; set it to the checkpoint's position "
                    "(XGROUP SETID), or start with a new checkpoint"
                )
        elif (
            not state.known
            and state.last_delivered > at
            and (stream in begin.shares or stream in ahead or (stream in begin.positions and not state.others))
        ):
            if not losses.allowed:
                raise DataLossError(
                    f"group {member.group!r} of stream {stream!r} no longer knows consumer {member.consumer!r}: it was "
                    f"made anew, or the consumer was deleted, and what lies between the checkpoint's {at} and the "
                    f"group's {state.last_delivered} would be passed over; set the group back (XGROUP SETID), or set "
                    "failOnDataLoss=false"
                )
            if not state.others:
                moved[stream] = at
    create_groups_at(server, member, made)
    set_groups_to(server, member, moved)
    return bool(made or moved)


def check_trimmed(
    member: Membership, heads: Mapping[str, StreamState], states: Mapping[str, GroupState], losses: Losses
) -> None:
    """Entries that were trimmed before the group came to them. Raises DataLossError where that is not allowed."""
    for stream, state in states.items():
        lost = losses.newly_trimmed(stream, heads[stream], state)
        if lost and not losses.allowed:
            raise DataLossError(
                f"stream {stream!r}: {lost} entries above {state.last_delivered} were trimmed or deleted before "
                f"group {member.group!r} read them; keep the stream longer than the lag of its slowest group, or set "
                "failOnDataLoss=false to go on without them"
            )
        losses.add(stream, lost, f"trimmed or deleted before group {member.group!r} read them")
