"""Streams that a query reads, its group on each of them, and its lease on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse

from spark_streams.deadletter.inspect.input_streams import Inputs, own_dead_letter_streams
from spark_streams.deadletter.inspect.recorded import fetch_recorded
from spark_streams.errors import StreamMissingError
from spark_streams.model.commit_mark import Mark, committed_key
from spark_streams.model.ids import StreamId
from spark_streams.model.keys import is_returned, key_of_query, origin_of, returned_stream
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.group.admin import create_groups_at, set_groups_to, streams_without_group
from spark_streams.source.group.findings import Start
from spark_streams.source.group.lease_and_checks import Lease
from spark_streams.source.group.missing_streams import ExpectedStreams, forget, is_idle
from spark_streams.source.group.retries import Retries
from spark_streams.source.group.start import (
    FIRST,
    InitialPositionKeys,
    create_groups,
    delete_initial_positions,
    fetch_initial_positions,
    fetch_marks,
    first_positions,
    require_not_forgotten,
    resolve_starts,
    restart_groups,
    save_initial_positions,
    starts_at,
    unused_start,
    warn_of_entries_before,
)
from spark_streams.source.group.state import fetch_state, missing
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.scan import matching_streams
from spark_streams.wire.replies.xinfo import stream_states

_log = logging.getLogger("spark_streams.source")


class Subscription:
    """The streams of the options, or those that match the pattern. now: a monotonic clock, in seconds."""

    def __init__(self, options: SourceOptions, now: Callable[[], float], limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self._now = now
        self._lease = Lease(options.address, options.group, options.consumer, limits.lease)
        self._begun_on: set[str] = set()  # streams whose group was not forgotten when the query began on them
        self._matched_at = 0.0  # when the pattern was last matched
        self._inputs = Inputs(limits.dead_letters)
        self._expected = ExpectedStreams(options)
        self.retries = Retries(options, limits)
        self._met: set[str] = set()  # streams that a query without a checkpoint has met (onNewCheckpoint)
        self._retry_origins: tuple[str, ...] = ()  # streams whose retries were last asked for
        self._returned_streams: Sequence[str] = ()  # of these
        self._dropped: set[str] = set()  # streams of the checkpoint without group that the options no longer name
        self._unused_returned: set[str] = set()  # streams of returned entries in the checkpoint, of missing streams
        self._read: set[str] = set()  # streams of the pattern that this run has read, and that are not forgotten
        self.created: dict[str, Start] = {}  # starts of groups that this run has created
        self.late: Mapping[str, Start] = {}  # starts of groups that the first trigger creates
        self.member = Membership(options.streams or (), options.group, options.consumer)

    @property
    def by_pattern(self) -> bool:
        """Whether a pattern names the streams, so that they may change while the query runs."""
        return self._options.streams_pattern is not None

    def join(self, server: Server) -> None:
        """Find the streams without the group, and resolve where it begins. The first trigger creates it on streams that
        the checkpoint does not name: on others a missing group is a loss.

        Raises ConsumerTakenError, WrongKeyTypeError, ServerError.
        """
        if not self.by_pattern:
            self.hold(server, self.member.streams)
            without = streams_without_group(server, self.member, self.member.streams)
            self._expected.record_absent(server, without)
            self._begin_late(server, resolve_starts(server, without, self._options.starting_offsets))
            return
        matching, without = self._fetch_matching(server)
        if len(without) == len(matching) and not server.execute("EXISTS", self._begun_key):
            # No stream has the group, so the query begins. The key is set after all first positions are saved: streams
            # that appear later are read from their first entry, also if a run dies in between.
            self._begin_late(server, resolve_starts(server, without, self._options.starting_offsets))
            server.execute("SET", self._begun_key, self._options.pattern)
        else:
            self.late = _with_positions(
                server,
                resolve_starts(server, without, FIRST),
                fetch_initial_positions(server, self._first_position_keys, without),
            )
        self.member = replace(self.member, streams=tuple(matching))

    def _begin_late(self, server: Server, starts: Mapping[str, Start]) -> None:
        """Begin on these streams with the first trigger. The positions are saved on the server: a query that asks
        again, or is killed before its first trigger, begins at the same positions."""
        positions = {stream: start.position for stream, start in starts.items()}
        saved = save_initial_positions(server, self._first_position_keys, positions)
        self.late = _with_positions(server, starts, saved)

    def _join_new_streams(self, server: Server, begin: Offset) -> None:
        """Match the pattern, and join new streams at their first entry, because the query is running."""
        matching, without = self._fetch_matching(server)
        new = [stream for stream in without if not begin.token or stream not in begin.positions]
        self.member = replace(self.member, streams=tuple(matching))
        self._create(server, resolve_starts(server, new, FIRST))

    def _create(self, server: Server, starts: Mapping[str, Start]) -> None:
        """Create groups, and streams that did not exist when the query started. A stream of a pattern that has vanished
        since is no longer read. For one of `streams`, raises DataLossError unless losses are counted."""
        absent = {stream: start for stream, start in starts.items() if self._expected.was_absent(stream)}
        present = {stream: start for stream, start in starts.items() if stream not in absent}
        created = {
            *create_groups_at(server, self.member, absent),
            *create_groups_at(server, self.member, present, make_streams=False),
        }
        vanished = starts.keys() - created
        if vanished and self.by_pattern:
            self.leave(vanished)
        elif vanished and self._options.fail_on_data_loss:
            raise missing(server, self.member, min(vanished), stream_too=True)
        elif vanished:
            for stream in sorted(vanished):
                _log.warning("stream %r was deleted after the query started. The query creates it again, empty", stream)
            created |= {*create_groups_at(server, self.member, {stream: starts[stream] for stream in vanished})}
        starts = {stream: starts[stream] for stream in created}
        warn_of_entries_before(self.member, starts)
        self.created |= starts

    def leave(self, streams: Collection[str]) -> None:
        """Read these missing streams of the pattern no longer, until the pattern matches them again."""
        self.member = replace(self.member, streams=tuple(s for s in self.member.streams if s not in streams))

    def _create_late(self, server: Server, begin: Offset, at_once: bool) -> None:
        """Create the groups that were missing when the query started, on streams that the checkpoint does not name.
        Without a checkpoint, `begin` has the positions, also those that an earlier run has resolved."""
        late = {s: start for s, start in self.late.items() if not begin.token or s not in begin.positions}
        if at_once and not begin.token:
            without_start = [
                stream for stream in self.member.streams if stream in begin.positions and stream not in late
            ]
            without = streams_without_group(server, self.member, without_start)
            late |= starts_at(server, {stream: begin[stream] for stream in without})
        self._create(server, late)
        if self.late and not self.by_pattern:
            delete_initial_positions(
                server, self._first_position_keys, list(self.late)
            )  # the groups have the positions now
        self.late = {}

    def streams_to_read(self, server: Server, begin: Offset, find_new: bool, at_once: bool) -> tuple[str, ...]:
        """Return the streams of a trigger, and hold the lease on them: the streams of the options, or those of the
        pattern and the checkpoint.

        find_new: match the pattern, either `at_once` or at its interval. Raises as `join` does, and StreamMissingError.
        """
        if self.by_pattern:
            if at_once or self.late:
                self._create_late(server, begin, at_once)
            if find_new and (at_once or self._is_search_due()):
                self._join_new_streams(server, begin)
            if at_once and begin.token:
                self._reset_to_first_entry(server, [s for s in self.member.streams if s not in begin.positions])
            streams = tuple(sorted({*self.member.streams, *filterfalse(is_returned, begin.streams)}))
            if at_once:
                self._expected.check_pattern(server, streams)
        else:
            streams = self.member.streams
            new = [stream for stream in streams if stream not in begin.positions]
            if at_once:
                # A stream that was added to the options may be missing. A missing group of another one is a loss.
                self._check_expected(server, new if begin.token else streams)
            if at_once or self.late:
                self._create_late(server, begin, at_once)
            if new:
                self.created |= create_groups(server, self.member, new, self._options.starting_offsets)
        self._meet_existing_groups(server, streams, begin)
        streams = (*streams, *self._return_entries(server, streams, begin, find_new, at_once))
        self.hold(server, streams)
        self._lease.keep_only(streams)
        if len(self._begun_on) > len(streams):  # a stream that comes back is asked for again
            self._begun_on.intersection_update(streams)
        if begin.token:
            self.created, self._met = {}, set()  # only a query without a checkpoint asks for them
        return streams

    def _return_entries(
        self, server: Server, streams: Sequence[str], begin: Offset, find_new: bool, at_once: bool
    ) -> Sequence[str]:
        """Return due entries for their retry. Return the streams with returned entries. The server is asked at each
        trigger if the query has retryDelay, otherwise only if the streams have changed."""
        if at_once:
            self.retries.forget()
        if self.by_pattern:
            self._forget_missing(server, streams, begin)
        # A stream that no longer matches the pattern may have entries that wait for a retry or are returned.
        returned = [stream for stream in begin.streams if is_returned(stream) and stream not in self._unused_returned]
        origins = (*streams, *(map(origin_of, returned) if self.by_pattern else ()))
        if at_once or self._options.retry_delay or origins != self._retry_origins:
            self._retry_origins = origins
            limit = self._limits.returned_entries if find_new else 0
            self._returned_streams = self.retries.return_due(server, origins, begin, limit)
        return [stream for stream in self._returned_streams if stream not in self._unused_returned]

    def _forget_missing(self, server: Server, streams: Sequence[str], begin: Offset) -> None:
        """Forget missing streams, here and on the server, unless entries of them wait (missing_streams)."""
        returned = {origin_of(stream): stream for stream in begin.streams if is_returned(stream)}
        self._read |= {*streams, *returned}
        missing_streams = self._read - {*streams}
        idle = {stream for stream in missing_streams & returned.keys() if is_idle(server, self.member, stream)}
        unused = {returned[stream] for stream in idle}
        # If an entry is returned after all, the query continues at the group's position, and not at a mark.
        member = self.member
        keys = [committed_key(s, member.group, member.consumer) for s in sorted(unused - self._unused_returned)]
        server.execute_all([("DEL", key) for key in keys])
        self._unused_returned = unused
        for stream in missing_streams - returned.keys():
            if forget(server, self.member, stream):
                self.retries.forget_stream(stream)
                self._read.discard(stream)

    def _meet_existing_groups(self, server: Server, streams: Sequence[str], begin: Offset) -> None:
        """Do as `onNewCheckpoint` says, once for each stream, until the query has a checkpoint: if the group existed on
        it. Streams of a pattern may come after the first trigger. Raises GroupExistsError, GroupSharedError."""
        options = self._options
        if begin.token or not options.is_start_given:
            return
        new = [stream for stream in streams if stream not in self._met and stream not in self.created]
        if not new:
            return
        later = replace(self.member, streams=tuple(stream for stream in new if stream not in begin.positions))
        at_first = None if options.restarts_at is None else FIRST
        existing = {
            **{stream: position for stream, position in begin.positions.items() if stream in new},
            **(first_positions(server, later, {}, options.no_ack, at_first) if later.streams else {}),
        }
        if options.restarts_at is not None:
            covered = {s: position for s, position in existing.items() if options.restarts_at.covers(s)}
            restart_groups(server, self.member, covered)
        else:
            # A query that has committed nothing meets the group that it has created itself.
            marks = fetch_marks(server, self.member, list(existing))
            existing = {
                stream: position
                for stream, position in existing.items()
                if (mark := marks.get(stream)) is None or not mark.is_begin or mark.id != position
            }
            unused = unused_start(server, self.member, existing, options.starting_offsets)
            if unused is not None and options.on_new_checkpoint == "fail":
                raise unused.error()
            if unused is not None:
                _log.warning("%s", unused.warning())
        self._met.update(new)

    def until_now(self, server: Server) -> tuple[str, ...]:
        """Return all streams of a run that ends at their present last entries, after returning all due entries."""
        streams = self.member.streams
        return (*streams, *self.retries.return_due(server, streams, None, limit=None))

    def has_changed(self, server: Server) -> bool:
        """Whether a pattern matches other streams than those that are read. The server is asked at intervals.
        Raises ServerError, and ConsumerTakenError if the lease is lost."""
        self.hold(server, ())
        if not self.by_pattern or not self._is_search_due():
            return False
        if self._fetch_matching_names(server) != [*self.member.streams]:
            return True  # the trigger matches the pattern again and joins the new streams
        self._matched_at = self._now()
        return False

    def _is_search_due(self) -> bool:
        limits = self._limits
        interval = max(limits.pattern_interval, limits.pattern_interval_each * len(self.member.streams))
        return self._now() - self._matched_at >= interval

    def _check_expected(self, server: Server, unknown: Sequence[str]) -> None:
        """Raises StreamMissingError, after deleting the positions that `join` has saved for groups not created."""
        try:
            self._expected.check(server, unknown)
        except StreamMissingError:
            delete_initial_positions(server, self._first_position_keys, list(self.late))
            raise

    def without_dropped(self, server: Server, begin: Offset, at_once: bool) -> Offset:
        """Return the checkpoint without streams that the options no longer name and that no longer have the group.
        at_once: ask the server which these are."""
        if at_once and not self.by_pattern:
            named = {*self.member.streams, *(returned_stream(s, self.member.group) for s in self.member.streams)}
            unnamed = [stream for stream in begin.streams if stream not in named]
            _, states = fetch_state(server, self.member, unnamed)
            self._dropped = {stream for stream, state in states.items() if state is None}
        return begin.without(self._dropped) if self._dropped & {*begin.streams} else begin

    def without_unused_returned(self, begin: Offset) -> Offset:
        """Return the checkpoint without the streams of returned entries that are not used any more."""
        return begin.without(self._unused_returned) if self._unused_returned & {*begin.streams} else begin

    def _fetch_matching(self, server: Server) -> tuple[list[str], list[str]]:
        """Return the streams that match the pattern, and those of them that do not have the group."""
        matching = self._fetch_matching_names(server)
        self.hold(server, matching)
        self._matched_at = self._now()
        return matching, streams_without_group(server, self.member, matching)

    def _fetch_matching_names(self, server: Server) -> list[str]:
        """Return the streams that match the pattern and have entries, or the group: entries of an empty stream may wait
        for a retry. Those that the options exclude are left out."""
        own = own_dead_letter_streams(self._options.dead_letter_stream)
        matching = self._options.without_excluded(matching_streams(server, self._options.pattern, own))
        inputs = self._inputs.filter_inputs(server, matching)
        empty = self._inputs.without_entries(matching)
        if not empty:
            return inputs
        without = {*streams_without_group(server, self.member, empty), *fetch_recorded(server, empty)}
        return sorted({*inputs, *filterfalse(without.__contains__, empty)})

    def _reset_to_first_entry(self, server: Server, streams: Sequence[str]) -> None:
        """Set the groups of new streams back to their first entry. Spark asks a query with a checkpoint, too, where it
        would begin (S2). If no stream had the group then, these streams were taken for those that the query begins
        with."""
        premature = list(fetch_initial_positions(server, self._first_position_keys, streams))
        existing = [stream for stream, head in stream_states(server, premature).items() if head.exists]
        starts = resolve_starts(server, existing, FIRST)
        marks = {stream: Mark.at_begin(start.position, start.read) for stream, start in starts.items()}
        set_groups_to(server, self.member, starts, marks)
        delete_initial_positions(server, self._first_position_keys, premature)

    def confirm_checkpoint(self, server: Server, begin: Offset) -> None:
        """Delete the keys that replace a missing checkpoint: first positions, and the key that the query has begun."""
        if self.by_pattern:
            delete_initial_positions(server, self._first_position_keys, begin.streams)
            server.execute("DEL", self._begun_key)

    @property
    def _first_position_keys(self) -> InitialPositionKeys:
        return InitialPositionKeys(self.member)

    @property
    def _begun_key(self) -> bytes:
        """Key that exists from the begin of the query until it has a checkpoint."""
        return key_of_query("begun", self.member.group, self.member.consumer)

    def hold(self, server: Server, streams: Sequence[str]) -> None:
        """Hold the lease on these streams. Raises ConsumerTakenError, and GroupForgottenError if the query begins."""
        self._lease.hold(server, streams)
        if not self._begun_on.issuperset(streams):
            new = [stream for stream in streams if stream not in self._begun_on]
            require_not_forgotten(server, self.member, new, not self._options.fail_on_data_loss)
            self._begun_on.update(new)

    def live(self, server: Server, consumers: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of these (stream, consumer) of the group that are running queries."""
        return self._lease.live(server, consumers)

    def release(self) -> None:
        """Give the lease back."""
        self._lease.release()


def _with_positions(server: Server, starts: Mapping[str, Start], positions: Mapping[str, StreamId]) -> dict[str, Start]:
    """Return the starts with these positions, on streams that have one."""
    other = {s: positions[s] for s, start in starts.items() if positions.get(s, start.position) != start.position}
    return {**starts, **starts_at(server, other)}
