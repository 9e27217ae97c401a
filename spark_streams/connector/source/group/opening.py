"""What a run does before its first trigger: it finds its streams, holds the lease on them, and creates its group where
it is missing. A run that knows the server no longer (a connection broke) opens again.

If a group is missing, and its stream …       it begins
is read without a checkpoint                  where `initialOffset` has said. The server keeps the position: the next
                                              call, and a run after a kill, say the same
was added to option `streams` since           at startingOffsets
matches the pattern since                     at its first entry
is named by the checkpoint                    where the comparison decides (group.compare)

A query with a checkpoint is asked where it would begin, too (facts.md, S2). So `first` saves positions, and creates no
group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.errors import StreamMissingError
from spark_streams.connector.keys import key_of_query, returned_stream
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group.admin import GroupChange, change_groups, streams_without_group, try_to_change
from spark_streams.connector.source.group.expected_streams import ExpectedStreams
from spark_streams.connector.source.group.findings import Start
from spark_streams.connector.source.group.start import (
    FIRST,
    InitialPositionKeys,
    delete_initial_positions,
    fetch_initial_positions,
    fetch_marks,
    first_positions,
    restart_groups,
    save_initial_positions,
    starting_positions,
    starts_at,
    unused_start,
    warn_of_entries_before,
)
from spark_streams.connector.source.group.state import fetch_state, missing
from spark_streams.connector.source.group.stream_set import StreamSet
from spark_streams.connector.source.membership import Membership
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.connection.server import Server

_log = logging.getLogger("spark_streams.connector.source")


@dataclass(frozen=True)
class Opened:
    """Where a trigger begins. checkpoint: Spark's; start: the same, without streams that the query no longer reads and
    with what the run knows better; streams: that the trigger reads, also new ones."""

    checkpoint: Offset
    start: Offset
    streams: tuple[str, ...]


class Opening:
    """Opens one run of a query on its streams."""

    def __init__(self, options: SourceOptions, streams: StreamSet) -> None:
        self._options = options
        self._streams = streams
        self._expected = ExpectedStreams(options)
        self._found: Mapping[str, Start] = {}  # starts of missing groups, with the counts of the moment of `find`
        self._met: set[str] = set()  # streams of which onNewCheckpoint was asked, or whose group this run has created
        member = streams.member
        self._keys = InitialPositionKeys(member)
        self._begun_key = key_of_query("begun", member.group, member.consumer)  # until the query has a checkpoint

    @property
    def _member(self) -> Membership:
        return self._streams.member

    def first(self, server: Server) -> dict[str, StreamId]:
        """Return where the query begins on each stream without a checkpoint, and save that where the group is missing.
        Raises as `find` does."""
        new = self.find(server)
        return first_positions(server, self._member, new, self._options.restarts_at)

    def find(self, server: Server) -> dict[str, StreamId]:
        """Find the streams, hold the lease on them, and save where missing groups begin without a checkpoint. Return
        these positions.

        Raises ConsumerTakenError, WrongKeyTypeError, ServerError."""
        positions = self._positions_without_group(server)
        self._found = starts_at(server, positions, self._options.starting_offsets)
        return positions

    def _positions_without_group(self, server: Server) -> dict[str, StreamId]:
        streams, starting = self._streams, self._options.starting_offsets
        if not streams.by_pattern:
            streams.hold(server, self._member.streams)
            without = streams_without_group(server, self._member, self._member.streams)
            self._expected.record_absent(server, without)
            return self._kept(server, starting_positions(server, without, starting))
        without = streams.match(server)
        if len(without) < len(self._member.streams) or server.execute("EXISTS", self._begun_key):
            return {**dict.fromkeys(without, MIN_ID), **fetch_initial_positions(server, self._keys, without)}
        # No stream has the group, so the query begins. From the moment of this SET, streams that appear are read from
        # their first entry, also by the run after a kill. All first positions are saved before it.
        positions = self._kept(server, starting_positions(server, without, starting))
        server.execute("SET", self._begun_key, self._options.pattern)
        return positions

    def _kept(self, server: Server, positions: Mapping[str, StreamId]) -> dict[str, StreamId]:
        return save_initial_positions(server, self._keys, positions)

    def open(self, server: Server, checkpoint: Offset) -> Offset:
        """Create missing groups: all before the first batch, later those of streams that the checkpoint does not name.
        Return the checkpoint without streams that the options no longer name and that no longer have the group.

        Raises as `find` does, and StreamMissingError, DataLossError, GroupSharedError."""
        streams = self._streams
        streams.forget_retries()
        if streams.by_pattern:
            self.join(server, checkpoint)
            self._expected.check_pattern(server, streams.named(checkpoint))
        else:
            unnamed = [s for s in self._member.streams if not (checkpoint.token and s in checkpoint.positions)]
            streams.hold(server, self._member.streams)
            self._check_expected(server, unnamed)
            without = streams_without_group(server, self._member, unnamed)
            if not self._expected.has_recorded:
                self._expected.record_absent(server, without)
            self._join(server, checkpoint, without)
            delete_initial_positions(server, self._keys, without)  # the groups have the positions now
        if checkpoint.token:
            self._confirm(server, checkpoint)
        return checkpoint if streams.by_pattern else self._without_dropped(server, checkpoint)

    def join(self, server: Server, checkpoint: Offset) -> None:
        """Match the pattern, and join the streams that match it now. Raises as `open` does."""
        self._join(server, checkpoint, self._streams.match(server, checkpoint))

    def _join(self, server: Server, checkpoint: Offset, without: Sequence[str]) -> None:
        """Create the groups of these streams, and meet those of the others."""
        positions = self._new_positions(server, [s for s in without if s not in checkpoint.positions])
        if not checkpoint.token:
            positions |= {s: checkpoint[s] for s in without if s in checkpoint.positions}
        # What is lost since `find` is a loss of the query: the counts of that moment show it.
        found = {s: start for s, start in self._found.items() if positions.get(s) == start.position}
        others = {s: position for s, position in positions.items() if s not in found}
        created = self._create(server, {**found, **starts_at(server, others, self._options.starting_offsets)})
        self._found = {}
        if not checkpoint.token:
            self._met |= created
            self._meet_existing(server, checkpoint)

    def _new_positions(self, server: Server, new: Sequence[str]) -> dict[str, StreamId]:
        """Return where the groups begin on streams that came to the query after it had begun."""
        if self._streams.by_pattern:
            return dict.fromkeys(new, MIN_ID)
        return self._kept(server, starting_positions(server, new, self._options.starting_offsets))

    def _create(self, server: Server, starts: Mapping[str, Start]) -> set[str]:
        """Create groups, and streams that did not exist when the query started. Return the streams that have the group
        now. A stream of a pattern that has vanished since is no longer read. For one of `streams`, raises DataLossError
        unless losses are counted."""
        changes = {
            stream: GroupChange.at_begin(start, makes_stream=self._expected.was_absent(stream))
            for stream, start in starts.items()
        }
        vanished = try_to_change(server, self._member, changes).missing
        created = {*starts} - vanished
        if vanished and self._streams.by_pattern:
            self._streams.leave(vanished)
        elif vanished and self._options.fail_on_data_loss:
            raise missing(server, self._member, min(vanished), stream_too=True)
        elif vanished:
            for stream in sorted(vanished):
                _log.warning("stream %r was deleted after the query started. The query creates it again, empty", stream)
            again = {stream: GroupChange.at_begin(starts[stream], makes_stream=True) for stream in vanished}
            change_groups(server, self._member, again)
            created |= vanished
        warn_of_entries_before(self._member, {stream: starts[stream] for stream in created})
        return created

    def _meet_existing(self, server: Server, first: Offset) -> None:
        """Do as `onNewCheckpoint` says, once for each stream, if the group existed on it. first: the first offset.
        Raises GroupSharedError."""
        options, member = self._options, self._member
        new = [stream for stream in self._streams.named(first) if stream not in self._met]
        if not new or not options.is_start_given:
            return
        later = replace(member, streams=tuple(stream for stream in new if stream not in first.positions))
        at_first = None if options.restarts_at is None else FIRST
        existing = {
            **{stream: position for stream, position in first.positions.items() if stream in new},
            **(first_positions(server, later, {}, at_first) if later.streams else {}),
        }
        if options.restarts_at is not None:
            covered = {s: position for s, position in existing.items() if options.restarts_at.covers(s)}
            restart_groups(server, member, covered)
        else:
            # A query that has committed nothing meets the group that it has created itself.
            marks = fetch_marks(server, member, list(existing))
            existing = {
                stream: position
                for stream, position in existing.items()
                if (mark := marks[stream]) is None or not mark.is_begin or mark.id != position
            }
            unused = unused_start(server, member, existing, options.starting_offsets)
            if unused is not None:
                _log.warning("%s", unused.warning())
        self._met.update(new)

    def _check_expected(self, server: Server, unknown: Sequence[str]) -> None:
        """Raises StreamMissingError, and deletes what `find` has saved: the next start begins at startingOffsets."""
        try:
            self._expected.check(server, unknown)
        except StreamMissingError:
            delete_initial_positions(server, self._keys, unknown)
            raise

    def _without_dropped(self, server: Server, checkpoint: Offset) -> Offset:
        member = self._member
        named = {*member.streams, *(returned_stream(stream, member.group) for stream in member.streams)}
        _, states = fetch_state(server, member, [stream for stream in checkpoint.streams if stream not in named])
        return checkpoint.without(stream for stream, state in states.items() if state is None)

    def _confirm(self, server: Server, checkpoint: Offset) -> None:
        """Delete the keys that replace a missing checkpoint: first positions, and the key that the query has begun."""
        delete_initial_positions(server, self._keys, checkpoint.streams)
        if self._streams.by_pattern:
            server.execute("DEL", self._begun_key)
