"""The streams of each trigger: those of the options, or those that match the pattern, with returned entries, and the
query's lease on all of them. Groups are created before (group.opening)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import filterfalse

from spark_streams.connector.deadletter.failed_entry import fetch_recorded
from spark_streams.connector.deadletter.input_streams import Inputs, own_dead_letter_streams
from spark_streams.connector.keys import is_returned, origin_of
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.source.group.admin import streams_without_group
from spark_streams.connector.source.group.consumer_lease import ConsumerLease
from spark_streams.connector.source.group.missing_streams import forget, is_idle
from spark_streams.connector.source.group.retries import Retries
from spark_streams.connector.source.group.start import require_not_forgotten
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.membership import Membership
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.scan import bounded, matching_streams

_log = logging.getLogger("spark_streams.connector.source")


class StreamSet:
    """Streams of one run of a query. now: a monotonic clock, in seconds."""

    def __init__(self, options: SourceOptions, now: Callable[[], float], limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self._now = now
        self._lease = ConsumerLease(options.address, options.group, options.consumer, limits.lease)
        self._begun_on: set[str] = set()  # streams whose group was not forgotten when the query began on them
        self._ends_now = False  # the run ends at the last entries that the streams had when it began
        self._matched_at = 0.0  # when the pattern was last matched
        self._inputs = Inputs(limits.dead_letters)
        self.retries = Retries(options, limits)
        self._retry_origins: tuple[str, ...] | None = None  # streams whose retries were last asked for
        self._returned_streams: Sequence[str] = ()  # of these
        self._unused_returned: set[str] = set()  # streams of returned entries in the checkpoint, of missing streams
        self._checkpointed: Sequence[str] = ()  # the streams of the last checkpoint
        self._left_out = ""  # as it was last logged
        self._read: set[str] = set()  # streams of the pattern that this run has read, and that are not forgotten
        self.member = Membership(options.streams or (), options.group, options.consumer)

    @property
    def by_pattern(self) -> bool:
        """Whether a pattern names the streams, so that they may change while the query runs."""
        return self._options.streams_pattern is not None

    def named(self, checkpoint: Offset) -> tuple[str, ...]:
        """Return the streams of the options, or those of the pattern and the checkpoint, without returned entries."""
        if not self.by_pattern:
            return self.member.streams
        return tuple(sorted({*self.member.streams, *filterfalse(is_returned, checkpoint.streams)}))

    def of_trigger(self, server: Server, checkpoint: Offset) -> tuple[str, ...]:
        """Return the streams to read, after returning due entries for their retry, and hold the lease on them.
        Raises ConsumerTakenError, ServerError."""
        streams = self.named(checkpoint)
        self._checkpointed = checkpoint.streams
        if self.by_pattern:
            self._forget_missing(server, streams, checkpoint)
        streams = (*streams, *self._returned(server, streams, checkpoint))
        self.hold(server, streams)
        self._lease.keep_only(streams)
        if len(self._begun_on) > len(streams):  # a stream that comes back is asked for again
            self._begun_on.intersection_update(streams)
        return streams

    def _returned(self, server: Server, streams: Sequence[str], checkpoint: Offset) -> Sequence[str]:
        """Return due entries for their retry. Return the streams with returned entries. The server is asked at each
        trigger if the query has retryDelay, otherwise only if the streams have changed."""
        # A stream that no longer matches the pattern may have entries that wait for a retry or are returned.
        returned = [name for name in checkpoint.streams if is_returned(name) and name not in self._unused_returned]
        origins = (*streams, *(map(origin_of, returned) if self.by_pattern else ()))
        if self._options.retry_delay or origins != self._retry_origins:
            self._retry_origins = origins
            limit = 0 if self._ends_now else self._limits.returned_entries
            self._returned_streams = self.retries.return_due(server, origins, checkpoint, limit)
        return [stream for stream in self._returned_streams if stream not in self._unused_returned]

    def _forget_missing(self, server: Server, streams: Sequence[str], checkpoint: Offset) -> None:
        """Forget missing streams, here and on the server, unless entries of them wait (missing_streams)."""
        returned = {origin_of(stream): stream for stream in checkpoint.streams if is_returned(stream)}
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

    def without_unused_returned(self, start: Offset) -> Offset:
        """Return the offset without the streams of returned entries that are not used any more."""
        return start.without(self._unused_returned) if self._unused_returned & {*start.streams} else start

    def leave(self, streams: Collection[str]) -> None:
        """Read these missing streams of the pattern no longer, until the pattern matches them again."""
        self.member = replace(self.member, streams=tuple(s for s in self.member.streams if s not in streams))

    def forget_retries(self) -> None:
        """Ask the server at the next trigger which entries wait for a retry."""
        self.retries.forget()
        self._retry_origins = None

    def until_now(self, server: Server) -> tuple[str, ...]:
        """Return all streams of a run that ends at their present last entries, after returning all due entries. From
        now on it looks for no others."""
        self._ends_now = True
        streams = self.member.streams
        return (*streams, *self.retries.return_due(server, streams, None, limit=None))

    # -- the pattern ---------------------------------------------------------------------------------------------

    def match(self, server: Server, checkpoint: Offset | None = None) -> list[str]:
        """Match the pattern: read the streams that match it. Return those of them that do not have the group.
        checkpoint: None if Spark has not passed it yet."""
        self._checkpointed = self._checkpointed if checkpoint is None else checkpoint.streams
        if not self._ends_now:
            matching = self._fetch_matching(server)
            self.hold(server, matching)
            self._matched_at = self._now()
            self.member = replace(self.member, streams=tuple(matching))
        return streams_without_group(server, self.member, self.member.streams)

    def has_changed(self, server: Server) -> bool:
        """Whether a pattern matches other streams than those that are read. The server is asked at intervals.
        Raises ServerError, and ConsumerTakenError if the lease is lost."""
        self.hold(server, ())
        if not self.is_match_due():
            return False
        if self._fetch_matching(server) != [*self.member.streams]:
            return True  # the trigger matches the pattern again and joins the new streams
        self._matched_at = self._now()
        return False

    def is_match_due(self) -> bool:
        """Whether the pattern was matched so long ago that new streams may match it."""
        limits = self._limits
        interval = max(limits.pattern_interval, limits.pattern_interval_each * len(self.member.streams))
        return self.by_pattern and not self._ends_now and self._now() - self._matched_at >= interval

    def _fetch_matching(self, server: Server) -> list[str]:
        """Return the streams that match the pattern and have entries, or the group: entries of an empty stream may wait
        for a retry. Those that the options exclude are left out."""
        own = own_dead_letter_streams(self._options.dead_letter_stream)
        names = self._options.without_excluded(matching_streams(server, self._options.pattern, own))
        found = bounded(names, lambda names: self._used(server, names), self._limits.pattern_streams)
        self._report_left_out(found.left_out)
        matching = found.streams
        inputs = self._inputs.filter_inputs(server, matching)
        empty = self._inputs.without_entries(matching)
        if not empty:
            return inputs
        without = {*streams_without_group(server, self.member, empty), *fetch_recorded(server, empty)}
        return sorted({*inputs, *filterfalse(without.__contains__, empty)})

    def _used(self, server: Server, names: Sequence[str]) -> Collection[str]:
        """Return the streams that the query reads: those of this run and of the checkpoint, else those with the group.
        Streams of a stranger do not take their places."""
        known = {*self.member.streams, *self._checkpointed}
        return known or {*names}.difference(streams_without_group(server, self.member, names))

    def _report_left_out(self, left_out: str) -> None:
        """Log which streams of the pattern are left out, when this changes."""
        if left_out and left_out != self._left_out:
            _log.warning(
                "streamsPattern %r matches streams that are not read: %s. Delete them, or choose a narrower pattern",
                self._options.pattern, left_out,
            )  # fmt: skip
        self._left_out = left_out

    # -- the lease -----------------------------------------------------------------------------------------------

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
