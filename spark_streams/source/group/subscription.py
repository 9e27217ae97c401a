"""Which streams a query reads, its group on each of them, and its lease on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse

from spark_streams.deadletter.inspect.input_streams import Inputs, own_dead_letter_streams
from spark_streams.errors import StreamMissingError
from spark_streams.model.ids import StreamId
from spark_streams.model.keys import is_returned, key_of_query, origin_of, returned_stream
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.findings.finding import Start
from spark_streams.source.findings.group_state import fetch_state, missing
from spark_streams.source.group.consumer_lease import Lease
from spark_streams.source.group.expected_streams import ExpectedStreams
from spark_streams.source.group.group_admin import create_groups_at, set_groups_to, streams_without_group
from spark_streams.source.group.initial_position import (
    FIRST,
    InitialPositionKeys,
    create_groups,
    forget_initial_positions,
    resolve,
    save_initial_positions,
    saved_initial_positions,
    unused_start,
)
from spark_streams.source.group.retries import Retries
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.scan import matching_streams
from spark_streams.wire.replies.xinfo import stream_states

_log = logging.getLogger("spark_streams.source")


class Subscription:
    """Those of the options, or those that match the pattern. now: a monotonic clock, in seconds; terms: of its
    lease."""

    def __init__(self, options: SourceOptions, now: Callable[[], float], limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self._now = now
        self._lease = Lease(options.address, options.group, options.consumer, limits.lease)
        self._last_look = 0.0  # when streams were last looked for
        self._inputs = Inputs(limits.dead_letters)
        self._expected = ExpectedStreams(options)
        self.retries = Retries(options, limits)
        self._is_first_trigger = True
        self._asked: tuple[str, ...] = ()  # the streams whose entries that come back were looked for last
        self._come_back: Sequence[str] = ()  # where these stand
        self._dropped: set[str] = set()  # streams of the checkpoint that the options name no more, and that are gone
        self.made: dict[str, Start] = {}  # where this run has made groups
        self.late: Mapping[str, Start] = {}  # whose groups are made with the first trigger
        self.member = Membership(options.streams or (), options.group, options.consumer)

    @property
    def by_pattern(self) -> bool:
        """Whether streams come and go while the query runs."""
        return self._options.streams_pattern is not None

    def join(self, server: Server) -> None:
        """Find out which streams do not have the group, and where it is to begin. It is made with the first trigger,
        on streams that the checkpoint does not know: a group that is missing on others is a loss.

        Raises ConsumerTakenError, WrongKeyTypeError, ServerError.
        """
        if not self.by_pattern:
            self.hold(server, self.member.streams)
            without = streams_without_group(server, self.member, self.member.streams)
            self._expected.look(server, without)
            self._begin_late(server, resolve(server, without, self._options.starting_offsets))
            return
        matching, without = self._look_for_streams(server)
        if len(without) == len(matching) and not server.execute("EXISTS", self._begun):
            # None has the group, so the query begins. The mark is set once all first positions are kept: streams that
            # appear after that are read from their first entry, whatever dies meanwhile.
            self._begin_late(server, resolve(server, without, self._options.starting_offsets))
            server.execute("SET", self._begun, self._options.pattern)
        else:
            self.late = _at(resolve(server, without, FIRST), saved_initial_positions(server, self._firsts, without))
        self.member = replace(self.member, streams=tuple(matching))

    def _begin_late(self, server: Server, starts: Mapping[str, Start]) -> None:
        """Begin on these streams with the first trigger. Where is kept on the server, so that a query that asks again,
        or is killed before its first trigger, begins at the same place."""
        firsts = {stream: start.position for stream, start in starts.items()}
        self.late = _at(starts, save_initial_positions(server, self._firsts, firsts))

    def _find(self, server: Server, begin: Offset) -> None:
        """Look for the pattern's streams, and join those that are new at their first entry: the query runs."""
        matching, without = self._look_for_streams(server)
        new = [stream for stream in without if not begin.token or stream not in begin.positions]
        self.member = replace(self.member, streams=tuple(matching))
        self._create(server, resolve(server, new, FIRST))

    def _create(self, server: Server, starts: Mapping[str, Start]) -> None:
        """Make groups, and streams that did not exist when the query started. One that has vanished since is read no
        more under a pattern. Raises DataLossError if it is one of `streams`, unless losses are counted."""
        absent = {stream: start for stream, start in starts.items() if self._expected.was_absent(stream)}
        others = {stream: start for stream, start in starts.items() if stream not in absent}
        made = {*create_groups_at(server, self.member, absent), *create_groups_at(server, self.member, others, False)}
        vanished = starts.keys() - made
        if vanished and self.by_pattern:
            self.member = replace(self.member, streams=tuple(s for s in self.member.streams if s not in vanished))
        elif vanished and self._options.fail_on_data_loss:
            raise missing(server, self.member, min(vanished), stream_too=True)
        elif vanished:
            for stream in sorted(vanished):
                _log.warning("stream %r is gone since the query started; it is made again, empty", stream)
            made |= {*create_groups_at(server, self.member, {stream: starts[stream] for stream in vanished})}
        self.made |= {stream: starts[stream] for stream in made}

    def _create_late(self, server: Server, begin: Offset, at_once: bool) -> None:
        """Make the groups that were missing when the query started, on streams that the checkpoint does not know. A
        query that has none yet begins where it was told, whichever run asked for that."""
        late = {s: start for s, start in self.late.items() if not begin.token or s not in begin.positions}
        if at_once and not begin.token:
            told = [stream for stream in self.member.streams if stream in begin.positions and stream not in late]
            late |= {stream: Start(begin[stream]) for stream in streams_without_group(server, self.member, told)}
        self._create(server, late)
        if self.late and not self.by_pattern:
            forget_initial_positions(server, self._firsts, list(self.late))  # the group says it from now on
        self.late = {}

    def of(self, server: Server, begin: Offset, look: bool, at_once: bool) -> tuple[str, ...]:
        """The streams of a trigger, and the lease on them: those of the options, or of the pattern and the checkpoint.

        look: whether streams that are new are looked for, now and then or `at_once`. Raises as `join` does, and
        StreamMissingError.
        """
        if self.by_pattern:
            if at_once or self.late:
                self._create_late(server, begin, at_once)
            if look and (at_once or self._now() - self._last_look >= self._limits.pattern_interval):
                self._find(server, begin)
            if at_once and begin.token:
                self._begin_at_first(server, [s for s in self.member.streams if s not in begin.positions])
            streams = tuple(sorted({*self.member.streams, *filterfalse(is_returned, begin.streams)}))
            if at_once:
                self._expected.check_pattern(server, streams)
        else:
            streams = self.member.streams
            new = [stream for stream in streams if stream not in begin.positions]
            if at_once:
                # Streams that the query was given since; the others' groups must be there, or something is lost.
                self._check_expected(server, new if begin.token else streams)
            if at_once or self.late:
                self._create_late(server, begin, at_once)
            if new:
                self.made |= create_groups(server, self.member, new, self._options.starting_offsets)
        if at_once:
            self._tell_where_it_begins(server, begin)
        streams = (*streams, *self._returned(server, streams, begin, look, at_once))
        self.hold(server, streams)
        self._lease.keep_only(streams)
        return streams

    def _returned(
        self, server: Server, streams: Sequence[str], begin: Offset, look: bool, at_once: bool
    ) -> Sequence[str]:
        """The streams in which entries have come back for another try. They are looked for at each trigger if entries
        may come back in time (retryDelay), else only if the streams are new."""
        if at_once:
            self.retries.forget()
        # A stream that the pattern finds no more may have left entries that come back, or have.
        left = [origin_of(stream) for stream in begin.streams if is_returned(stream)] if self.by_pattern else []
        asked = (*streams, *left)
        if at_once or self._options.retry_delay or asked != self._asked:
            self._asked = asked
            self._come_back = self.retries.look(server, asked, begin, self._limits.returned_entries if look else 0)
        return self._come_back

    def _tell_where_it_begins(self, server: Server, begin: Offset) -> None:
        """Once a run, with its first trigger: the query has no checkpoint, and its group existed, so that
        startingOffsets is not used."""
        is_first, self._is_first_trigger = self._is_first_trigger, False
        if not is_first or begin.token or not self._options.is_start_given:
            return
        existed = {stream: at for stream, at in begin.positions.items() if stream not in self.made}
        line = unused_start(server, self.member, existed, self._options.starting_offsets)
        if line is not None:
            _log.warning("%s", line)

    def until_now(self, server: Server) -> tuple[str, ...]:
        """All streams that are read up to what they hold now, with what is due by now."""
        streams = self.member.streams
        return (*streams, *self.retries.look(server, streams, None, most=None))

    def has_changed(self, server: Server) -> bool:
        """Whether the pattern, if there is one, matches other streams than those that are read. The server is asked now
        and then (Limits.pattern_interval). Raises ServerError, and ConsumerTakenError if the lease is lost."""
        self.hold(server, ())
        if not self.by_pattern or self._now() - self._last_look < self._limits.pattern_interval:
            return False
        if self._matching(server) != [*self.member.streams]:
            return True  # the trigger looks again, and joins them
        self._last_look = self._now()
        return False

    def _check_expected(self, server: Server, unknown: Sequence[str]) -> None:
        """Raises StreamMissingError; then nothing is left of what `join` has kept for groups that are not made."""
        try:
            self._expected.check(server, unknown)
        except StreamMissingError:
            forget_initial_positions(server, self._firsts, list(self.late))
            raise

    def without_dropped(self, server: Server, begin: Offset, at_once: bool) -> Offset:
        """The checkpoint without streams that the options name no more and whose group is gone. at_once: the server is
        asked which these are."""
        if at_once and not self.by_pattern:
            read = {*self.member.streams, *(returned_stream(s, self.member.group) for s in self.member.streams)}
            dropped = [stream for stream in begin.streams if stream not in read]
            _, states = fetch_state(server, self.member, dropped)
            self._dropped = {stream for stream, state in states.items() if state is None}
        return begin.without(self._dropped) if self._dropped & {*begin.streams} else begin

    def _look_for_streams(self, server: Server) -> tuple[list[str], list[str]]:
        """The pattern's streams, and those of them that do not have the group."""
        matching = self._matching(server)
        self.hold(server, matching)
        self._last_look = self._now()
        return matching, streams_without_group(server, self.member, matching)

    def _matching(self, server: Server) -> list[str]:
        """The streams that the pattern matches, without dead letters."""
        but = own_dead_letter_streams(self._options.dead_letter_stream)
        return self._inputs.filter_inputs(server, matching_streams(server, self._options.pattern, but))

    def _begin_at_first(self, server: Server, streams: Sequence[str]) -> None:
        """Spark asks a query that has a checkpoint, too, where it would begin (S2). If no stream had the group then,
        those that had appeared were taken for the first ones: they are read from their first entry all the same."""
        wrong = list(saved_initial_positions(server, self._firsts, streams))
        there = [stream for stream, head in stream_states(server, wrong).items() if head.exists]  # or gone again since
        set_groups_to(server, self.member, resolve(server, there, FIRST))
        forget_initial_positions(server, self._firsts, wrong)

    def has_checkpoint(self, server: Server, begin: Offset) -> None:
        """First positions and the mark that the query has begun are of no more use."""
        if self.by_pattern:
            forget_initial_positions(server, self._firsts, begin.streams)
            server.execute("DEL", self._begun)

    @property
    def _firsts(self) -> InitialPositionKeys:
        return InitialPositionKeys("first", self.member)

    @property
    def _begun(self) -> bytes:
        """The key that is there from when the query begins until it has a checkpoint."""
        return key_of_query("begun", self.member.group, self.member.consumer)

    def hold(self, server: Server, streams: Sequence[str]) -> None:
        """Have the lease on these streams. Raises ConsumerTakenError."""
        self._lease.hold(server, streams)

    def live(self, server: Server, asked: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Which of these (stream, consumer) of the group are queries that run."""
        return self._lease.live(server, asked)

    def release(self) -> None:
        """Give the lease back."""
        self._lease.release()


def _at(starts: Mapping[str, Start], positions: Mapping[str, StreamId]) -> dict[str, Start]:
    """The starts, at these positions of those streams that have one."""
    return {
        stream: start if positions.get(stream, start.position) == start.position else Start(positions[stream])
        for stream, start in starts.items()
    }
