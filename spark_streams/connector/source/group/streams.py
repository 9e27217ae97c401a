"""The streams of each trigger: those of the options, or those that match the pattern, with returned entries, and the
query's lease on all of them. Groups are created before (group.begin).

The lease (wire.lease): one running query per group and consumer, on each of its streams. Two queries with the same
consumer would take each other's entries, also two sources of one DataFrame (a self-join). Other queries never claim
entries of a consumer with a live lease (pending.claim).

Expected streams: the query names them before they exist. It waits for them and logs this, or refuses
(`createStreams=false`), at the first trigger, which brings the checkpoint. A missing stream of that is a loss.

Missing streams of a pattern: their keys are deleted, unless entries wait for a retry.

    1. The stream is missing, and the checkpoint no longer names it (group.recovery).
    2. Nothing waits for a retry, and the group has acknowledged all returned entries (is_idle). The next offset does
       not name the stream of returned entries.
    3. The checkpoint does not name it. One transaction deletes all keys beside the missing stream (forget).

A run that is killed between 2 and 3 leaves the keys. They are small, and `rstream groups delete` removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import filterfalse

from spark_streams.base.given_text import from_milliseconds
from spark_streams.base.ids import MIN_ID
from spark_streams.connector.deadletter.input_streams import Inputs, own_dead_letter_streams
from spark_streams.connector.deadletter.post import fetch_recorded
from spark_streams.connector.errors import ConsumerTakenError, GroupForgottenError
from spark_streams.connector.keys import (
    delays_key,
    forgotten_key,
    is_returned,
    keys_of_consumer,
    origin_of,
    origins_key,
    retry_stream,
    returned_stream,
)
from spark_streams.connector.options.parsers import MOST_DELAYS
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.retention import ForgottenGroup
from spark_streams.connector.shards.names import Shard
from spark_streams.connector.source.group.retries import Retries
from spark_streams.connector.source.group.snapshot import streams_without_group
from spark_streams.connector.source.group_client import GroupClient, Membership, lease_key
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire import lease, scan
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, Reply, Server
from spark_streams.connector.wire.replies import is_no_group, is_no_such_key, transact
from spark_streams.connector.wire.xinfo import group_named, stream_states

_log = logging.getLogger("spark_streams.source")


class ConsumerLease(lease.Lease):
    """Lease of one query on its streams. Raises ConsumerTakenError if another query has the consumer."""

    def __init__(
        self, address: Address, group: str, consumer: str, terms: lease.LeaseTerms = lease.DEFAULT_TERMS
    ) -> None:
        super().__init__(address, group, terms)
        self._group, self._consumer = group, consumer

    def key_of(self, stream: str) -> bytes:
        return lease_key(stream, self._group, self._consumer)

    def taken(self, stream: str, where: str) -> ConsumerTakenError:
        return ConsumerTakenError(
            f"stream {stream!r} at {self._address}: another running query is consumer {self._consumer!r} of group "
            f"{self._group!r}{where}, so this query is refused. Call load() once for each query. Set another group "
            "(both queries get all entries) or another consumer (they share the entries), or stop the other query. If "
            "this query reads one load() twice (a self-join), it takes the consumer from itself: call load() for each "
            "side, each with its own option group"
        )

    def live(self, server: Server, consumers: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of these (stream, consumer) of the group that have the lease of a running query."""
        keys = [lease_key(stream, self._group, consumer) for stream, consumer in consumers]
        leases = server.execute_all([("GET", key) for key in keys])
        held = lease.are_held(server, leases, self._terms.processes)
        return {pair for pair, is_held in zip(consumers, held, strict=True) if is_held}


class ExpectedStreams:
    """Absent streams of one run of a query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._excluded = own_dead_letter_streams(options.dead_letter_stream)
        self._absent: set[str] = set()  # when the query started
        self.has_recorded = False  # which these are
        self._is_reported = False

    def record_absent(self, server: Server, streams: Sequence[str]) -> None:
        """Record which of these streams do not exist, before XGROUP CREATE creates them. Raises WrongKeyTypeError."""
        self.has_recorded = True
        self._absent |= {stream for stream, state in stream_states(server, streams).items() if not state.exists}

    def was_absent(self, stream: str) -> bool:
        """Whether a stream did not exist when the query started."""
        return stream in self._absent

    def report_silent(self, server: Server, unknown: Sequence[str]) -> None:
        """Report streams without entries that are unknown to the checkpoint, at the first trigger."""
        if self._is_reported:
            return
        reasons = {}
        for stream, state in stream_states(server, unknown).items():
            if not state.exists and not self._options.create_streams:
                raise scan.missing(server, stream, scan.CREATE)
            if state.last == MIN_ID and not (
                state.exists and Shard.parse(stream)
            ):  # shards are created before their rows
                reasons[stream] = scan.ABSENT if stream in self._absent or not state.exists else scan.SILENT
        for line in scan.lines_of(server, reasons, scan.WAITING, self._excluded):
            _log.warning("%s", line)
        self._is_reported = True

    def report_unmatched(self, server: Server, streams: Sequence[str]) -> None:
        """Do the same for a pattern. streams: that match it, or that the checkpoint names."""
        if not self._is_reported and not streams:
            line = scan.nothing_matches(server, self._options.pattern, self._excluded)
            _log.warning("%s; waiting for the first one", line)
        self._is_reported = True


_KINDS = ("committed", "notes", "missing")  # not the lease, which the next renewal removes


def is_idle(client: GroupClient, stream: str) -> bool:
    """Whether a stream is missing, and no entry of it waits for a retry or is returned. Raises ServerError."""
    return _has_nothing(_state(client.server.connection_for(stream), client.group, stream))


def forget(client: GroupClient, stream: str) -> bool:
    """Delete the keys beside a missing stream. Return False, and delete nothing, if it exists or an entry waits."""
    node = client.server.connection_for(stream)
    retries, returned = _retry_streams(client.group, stream), returned_stream(stream, client.group)
    node.execute("WATCH", stream, *retries, returned)
    if not _has_nothing(_state(node, client.group, stream)):
        node.execute("UNWATCH")
        return False
    keys: list[bytes | str] = [*retries, *map(origins_key, retries), returned, delays_key(stream, client.group)]
    for name in (stream, returned):
        keys += [key for kind, key in keys_of_consumer(name, client.group, client.consumer) if kind in _KINDS]
    return transact(node, [("DEL", *keys)]) is not None


def _retry_streams(group: str, stream: str) -> list[str]:
    return [retry_stream(stream, group, attempts) for attempts in range(1, MOST_DELAYS + 1)]


def _state(node: Connection, group: str, stream: str) -> Sequence[Reply]:
    """Return whether the stream exists, what is pending of returned entries, and the lengths of the other streams."""
    returned = returned_stream(stream, group)
    lengths = [("XLEN", name) for name in (returned, *_retry_streams(group, stream))]
    return node.execute_all([("EXISTS", stream), ("XPENDING", returned, group), *lengths], is_no_group)


def _has_nothing(state: Sequence[Reply]) -> bool:
    exists, pending, *lengths = state
    return not any([exists, 0 if is_no_group(pending) else pending[0], *lengths])


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
        self.member = Membership(options.group, options.consumer)
        self.names = options.streams or ()  # those of the options, or those that match the pattern

    @property
    def by_pattern(self) -> bool:
        """Whether a pattern names the streams, so that they may change while the query runs."""
        return self._options.streams_pattern is not None

    def named(self, checkpoint: Offset) -> tuple[str, ...]:
        """Return the streams of the options; of a pattern also those of the checkpoint that it selects, which may be
        missing. Without returned entries."""
        if not self.by_pattern:
            return self.names
        others = sorted({*filterfalse(is_returned, checkpoint.streams)}.difference(self.names))
        return tuple(sorted((*self.names, *self._options.selected(others))))

    def of_trigger(self, client: GroupClient, checkpoint: Offset) -> tuple[str, ...]:
        """Return the streams to read, after returning due entries, and hold the lease. Raises ConsumerTakenError."""
        streams = self.named(checkpoint)
        self._checkpointed = checkpoint.streams
        if self.by_pattern:
            self._forget_missing(client, streams, checkpoint)
        streams = (*streams, *self._returned(client, streams, checkpoint))
        self.hold(client, streams)
        self._lease.keep_only(streams)
        if len(self._begun_on) > len(streams):  # a stream that comes back is asked for again
            self._begun_on.intersection_update(streams)
        return streams

    def _returned(self, client: GroupClient, streams: Sequence[str], checkpoint: Offset) -> Sequence[str]:
        """Return due entries, and the streams of returned entries. The server is asked at each trigger if the query has
        retryDelay, otherwise only if the streams have changed."""
        # A stream that no longer matches the pattern may have entries that wait for a retry or are returned.
        returned = [name for name in checkpoint.streams if is_returned(name) and name not in self._unused_returned]
        origins = (*streams, *(map(origin_of, returned) if self.by_pattern else ()))
        if self._options.retry_delay or origins != self._retry_origins:
            self._retry_origins = origins
            limit = 0 if self._ends_now else self._limits.returned_entries
            self._returned_streams = self.retries.return_due(client.server, origins, checkpoint, limit)
        return [stream for stream in self._returned_streams if stream not in self._unused_returned]

    def _forget_missing(self, client: GroupClient, streams: Sequence[str], checkpoint: Offset) -> None:
        """Forget missing streams, here and on the server, unless entries of them wait (missing_streams)."""
        returned = {origin_of(stream): stream for stream in checkpoint.streams if is_returned(stream)}
        self._read |= {*streams, *returned}
        missing_streams = self._read - {*streams}
        idle = {stream for stream in missing_streams & returned.keys() if is_idle(client, stream)}
        unused = {returned[stream] for stream in idle}
        # If an entry is returned after all, the query continues at the group's position, and not at a mark.
        keys = [client.mark_key(s) for s in sorted(unused - self._unused_returned)]
        client.server.execute_all([("DEL", key) for key in keys])
        self._unused_returned = unused
        for stream in missing_streams - returned.keys():
            if forget(client, stream):
                self.retries.forget_stream(stream)
                self._read.discard(stream)

    def without_unused_returned(self, start: Offset) -> Offset:
        """Return the offset without the streams of returned entries that are not used any more."""
        return start.without(self._unused_returned) if self._unused_returned & {*start.streams} else start

    def leave(self, streams: Collection[str]) -> None:
        """Read these missing streams of the pattern no longer, until the pattern matches them again."""
        self.names = tuple(stream for stream in self.names if stream not in streams)

    def forget_retries(self) -> None:
        """Ask the server at the next trigger which entries wait for a retry."""
        self.retries.forget()
        self._retry_origins = None

    def until_now(self, client: GroupClient) -> tuple[str, ...]:
        """Return all streams of a run that ends at their present last entries, after returning all due entries."""
        self._ends_now = True
        streams = self.names
        return (*streams, *self.retries.return_due(client.server, streams, None, limit=None))

    # -- the pattern ---------------------------------------------------------------------------------------------

    def match(self, client: GroupClient, checkpoint: Offset | None = None) -> list[str]:
        """Read the streams that match the pattern now. Return those that do not have the group."""
        self._checkpointed = self._checkpointed if checkpoint is None else checkpoint.streams
        if not self._ends_now:
            matching = self._fetch_matching(client)
            self.hold(client, matching)
            self._matched_at = self._now()
            self.names = tuple(matching)
        return streams_without_group(client, self.names)

    def has_changed(self, client: GroupClient) -> bool:
        """Whether a pattern matches other streams than those that are read. Raises ConsumerTakenError."""
        self.hold(client, ())
        if not self.is_match_due():
            return False
        if self._fetch_matching(client) != [*self.names]:
            return True  # the trigger matches the pattern again and joins the new streams
        self._matched_at = self._now()
        return False

    def is_match_due(self) -> bool:
        """Whether the pattern was matched so long ago that new streams may match it."""
        limits = self._limits
        interval = max(limits.pattern_interval, limits.pattern_interval_each * len(self.names))
        return self.by_pattern and not self._ends_now and self._now() - self._matched_at >= interval

    def _fetch_matching(self, client: GroupClient) -> list[str]:
        """Return the streams that match the pattern and have entries, or the group: some may wait for a retry."""
        own = own_dead_letter_streams(self._options.dead_letter_stream)
        names = self._options.without_excluded(scan.matching_streams(client.server, self._options.pattern, own))
        found = scan.bounded(names, partial(self._used, client), self._limits.pattern_streams)
        self._report_left_out(found.left_out)
        matching = found.streams
        inputs = self._inputs.filter_inputs(client.server, matching)
        empty = self._inputs.without_entries(matching)
        if not empty:
            return inputs
        without = {*streams_without_group(client, empty), *fetch_recorded(client.server, empty)}
        return sorted({*inputs, *filterfalse(without.__contains__, empty)})

    def _used(self, client: GroupClient, names: Sequence[str]) -> Collection[str]:
        """Return the streams that the query reads. Streams of a stranger do not take their places."""
        known = {*self.names, *self._checkpointed}
        return known or {*names}.difference(streams_without_group(client, names))

    def _report_left_out(self, left_out: str) -> None:
        if left_out and left_out != self._left_out:
            _log.warning(
                "streamsPattern %r matches streams that are not read: %s. Delete them, or choose a narrower pattern",
                self._options.pattern, left_out,
            )  # fmt: skip
        self._left_out = left_out

    # -- the lease -----------------------------------------------------------------------------------------------

    def hold(self, client: GroupClient, streams: Sequence[str]) -> None:
        """Hold the lease on these streams. Raises ConsumerTakenError, and GroupForgottenError if the query begins."""
        self._lease.hold(client.server, streams)
        if not self._begun_on.issuperset(streams):
            new = [stream for stream in streams if stream not in self._begun_on]
            require_not_forgotten(client, new, not self._options.fail_on_data_loss)
            self._begun_on.update(new)

    def hold_batch(self, client: GroupClient, end: Offset) -> None:
        """Hold it on the streams that a replayed batch and the next one are read from. Raises as `hold` does."""
        self.hold(client, sorted({*self.named(end), *end.taken_from}))

    def live(self, server: Server, consumers: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        return self._lease.live(server, consumers)

    def release(self) -> None:
        self._lease.release()


def require_not_forgotten(client: GroupClient, streams: Sequence[str], accepts_loss: bool) -> None:
    """Raise GroupForgottenError if the group was forgotten on these streams since it was last used
    (connector.retention). accepts_loss: log it, and let the group hold entries back again."""
    own = [stream for stream in streams if not is_returned(stream)]
    replies = client.server.execute_all([("GET", forgotten_key(stream, client.group)) for stream in own])
    for stream, record in zip(own, map(ForgottenGroup.parse, replies), strict=True):
        if record is None:
            continue
        [groups] = client.server.execute_all([("XINFO", "GROUPS", stream)], is_no_such_key)
        info = group_named(client.group, groups)
        if info is None or info.last_delivered != record.position:
            continue  # created again or set to another position since
        first = stream_states(client.server, [stream])[stream].first
        left = "no entry is left" if first in (None, MIN_ID) else f"the oldest entry that is left is {first}"
        why = (
            f"group {client.group!r} of stream {stream!r} at {client.server.address} was forgotten at "
            f"{from_milliseconds(record.at).isoformat(timespec='seconds')}, after entry {record.position}: its "
            "consumers were idle when rstream groups prune --hold ran, so entries that it had not acknowledged may be "
            f"removed; {left}"
        )
        if not accepts_loss:
            raise GroupForgottenError(
                f"{why}. To accept the loss and read what is left, set failOnDataLoss=false for one start. To keep "
                "entries longer, raise --idle of that command where it is scheduled"
            )
        _log.warning("%s (failOnDataLoss=false)", why)
        client.server.execute("DEL", forgotten_key(stream, client.group))
