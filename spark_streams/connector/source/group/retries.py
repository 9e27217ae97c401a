"""Retry streams of a query: entries that have failed wait in them, and are returned when their delay is over.

Beside each stream there may be, for its group,

    rstream:retry:{orders}:billing:1     entries that have failed once, :2 twice …    one stream each; IDs: server time
    rstream:returned:{orders}:billing    entries whose delay is over                  read like any other stream

A failed entry is written to a retry stream and acknowledged in one transaction (deadletter.post). When it is due,
the next trigger of a query of the group moves it to the returned stream, also in one transaction
(deadletter.waiting_entries). There it is like any entry: reserved, pending, and acknowledged when its batch is
committed. Then it is removed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import U64_MAX, StreamId
from spark_streams.connector.deadletter.waiting_entries import return_due_entries
from spark_streams.connector.keys import delays_key, retry_stream, returned_stream
from spark_streams.connector.options.parsers import MOST_DELAYS
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import NO_PENDING_LIST
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_busy_group, is_key_required, is_wrong_type, milliseconds

_ALL = range(1, MOST_DELAYS + 1)
_log = logging.getLogger("spark_streams.source")


@dataclass
class _RetryStream:
    name: str
    delay: int  # milliseconds
    exists: bool = False  # it was seen on the server
    length: int = 0  # entries
    first: StreamId | None = None  # ID of its first entry; None: unknown

    @property
    def due(self) -> int | None:
        """When the first entry is due, in milliseconds of the server's clock."""
        return None if self.first is None or not self.length else self.first.ms + self.delay


class Retries:
    """Retry streams of one query. Without retryDelay it reads returned entries, and returns none."""

    def __init__(self, options: SourceOptions, limits: Limits) -> None:
        self._group = options.group
        self._delays = options.retry_delay or ()
        self._reads_returned = options.has_pending_list
        self._limits = limits
        self._retry_streams: dict[str, list[_RetryStream]] = {}  # by first stream
        self._returned_names: dict[str, str] = {}  # by first stream
        self._existing: set[str] = set()  # returned streams that exist
        self._joined: set[str] = set()  # returned streams that have the group
        self._clock_ahead = 0.0  # seconds that the server's clock is ahead of this process' time.monotonic()

    def forget(self) -> None:
        """Forget all streams, so that the next trigger asks the server."""
        self._retry_streams, self._returned_names, self._existing, self._joined = {}, {}, set(), set()

    def forget_stream(self, stream: str) -> None:
        """Forget a missing stream, for which nothing waits."""
        self._retry_streams.pop(stream, None)
        returned = self._returned_names.pop(stream, "")
        self._existing.discard(returned)
        self._joined.discard(returned)

    def return_due(self, server: Server, streams: Iterable[str], begin: Offset | None, limit: int | None) -> list[str]:
        """Return due entries to the returned streams of these streams. Return the returned streams to read. begin: the
        checkpoint, whose streams must exist; limit: entries of each retry stream, approximately, None: unlimited."""
        self._add_streams(server, [stream for stream in dict.fromkeys(streams) if stream not in self._retry_streams])
        self._fetch_lengths(server)
        for stream, retry_streams in self._retry_streams.items():
            for retry in retry_streams:
                if retry.length:
                    self._return_due_of(server, stream, retry, limit)
        positions = {} if begin is None else begin.positions
        if not self._reads_returned:
            return []
        self._create_groups(server, self._existing - self._joined - positions.keys())
        return [name for name in self._returned_names.values() if name in self._existing or name in positions]

    def _fetch_lengths(self, server: Server) -> None:
        """Fetch how many entries wait, and which returned streams exist. Absent ones take one EXISTS per stream."""
        absent = ([retry for retry in streams if not retry.exists] for streams in self._retry_streams.values())
        absent_lists = [of_stream for of_stream in absent if of_stream]
        existing = [retry for streams in self._retry_streams.values() for retry in streams if retry.exists]
        new_names = [name for name in self._returned_names.values() if name not in self._existing]
        returned_names = new_names if self._delays else []
        replies = server.execute_all([
            *[("EXISTS", *[retry.name for retry in of_stream]) for of_stream in absent_lists],
            *[("EXISTS", name) for name in returned_names],
            *[("XLEN", retry.name) for retry in existing],
        ])  # fmt: skip
        end_of_exists = len(absent_lists) + len(returned_names)
        returned_replies = replies[len(absent_lists) : end_of_exists]
        self._existing |= {name for name, exists in zip(returned_names, returned_replies, strict=True) if exists}
        lengths = dict(zip([retry.name for retry in existing], replies[end_of_exists:], strict=True))
        pairs = zip(absent_lists, replies, strict=False)
        appeared = [retry for of_stream, count in pairs if count for retry in of_stream]
        if appeared:
            commands = [(command, retry.name) for retry in appeared for command in ("EXISTS", "XLEN")]
            answers = server.execute_all(commands)
            for retry, exists, length in zip(appeared, answers[0::2], answers[1::2], strict=True):
                retry.exists, lengths[retry.name] = bool(exists), length
        for streams in self._retry_streams.values():
            for retry in streams:
                retry.length = lengths.get(retry.name, 0)

    @property
    def returned(self) -> set[str]:
        """Returned streams that exist and that this query reads, as of the last trigger."""
        return self._existing.copy() if self._reads_returned else set()

    def _create_groups(self, server: Server, names: Iterable[str]) -> None:
        """Create the group on returned streams that the checkpoint does not name: another client may have created the
        stream alone. A key of another type is skipped."""
        commands = [("XGROUP", "CREATE", name, self._group, "0-0", "ENTRIESREAD", "0") for name in sorted(names)]
        replies = server.execute_all(commands, is_wrong_type, is_key_required, is_busy_group)
        for name, reply in zip(sorted(names), replies, strict=True):
            if is_wrong_type(reply) or is_key_required(reply):
                self._existing.discard(name)
                if is_wrong_type(reply):
                    _log.warning(
                        "key %r at %s is not a stream, so the query does not read it. Delete it (DEL)",
                        name,
                        server.address,
                    )
            else:
                self._joined.add(name)

    def waiting(self) -> dict[str, dict[str, int | None]]:
        """Return, per stream, how many entries wait and when the next one is due (milliseconds since the epoch)."""
        waiting: dict[str, dict[str, int | None]] = {}
        for stream, retry_streams in self._retry_streams.items():
            entries = sum(retry.length for retry in retry_streams)
            if entries:
                due = [retry.due for retry in retry_streams if retry.due is not None]
                waiting[stream] = {"entries": entries, "due": min(due, default=None)}
        return waiting

    def seconds_until_due(self) -> float:
        """Return the time until the next entry is due, as of the last trigger; inf: none waits, 0: unknown."""
        due_times = [retry.due for streams in self._retry_streams.values() for retry in streams if retry.length]
        clock = time.monotonic() + self._clock_ahead
        return min((0.0 if due is None else due / 1000 - clock for due in due_times), default=math.inf)

    def _add_streams(self, server: Server, streams: Sequence[str]) -> None:
        """Fetch which streams of earlier runs exist beside new streams, also those of more delays."""
        if not streams:
            return
        commands: list[tuple[str, ...]] = []
        for stream in streams:
            self._returned_names[stream] = returned_stream(stream, self._group)
            commands += [
                ("EXISTS", self._returned_names[stream]),
                ("EXISTS", *[retry_stream(stream, self._group, attempts) for attempts in _ALL]),
            ]
        replies = server.execute_all(commands)
        for stream, has_returned, has_retries in zip(streams, replies[0::2], replies[1::2], strict=True):
            if has_returned:
                self._existing.add(self._returned_names[stream])
            if not self._delays:
                self._retry_streams[stream] = []
                if has_retries or (has_returned and not self._reads_returned):
                    self._warn_of_waiting(server, stream)
                continue
            # All of them: another query of the group may have more delays than this one, now or later.
            self._retry_streams[stream] = [
                _RetryStream(retry_stream(stream, self._group, n), self._delays[min(n, len(self._delays)) - 1])
                for n in _ALL
            ]
        if self._delays:
            server.execute_all([self._set_delays(stream) for stream in streams])

    def _set_delays(self, stream: str) -> tuple[str | bytes, ...]:
        return "SET", delays_key(stream, self._group), " ".join(map(str, self._delays))

    def _warn_of_waiting(self, server: Server, stream: str) -> None:
        """Log how many entries this query leaves: waiting ones and, if it reads no returned streams, returned ones."""
        retry_names = [retry_stream(stream, self._group, attempts) for attempts in _ALL]
        names = [*retry_names, *([] if self._reads_returned else [self._returned_names[stream]])]
        lengths = dict(zip(names, server.execute_all([("XLEN", name) for name in names]), strict=True))
        if not sum(lengths.values()):
            return
        server.execute("DEL", delays_key(stream, self._group))
        _log.warning(
            "stream %r: %d entries wait for a retry by group %r, and no query returns them without option retryDelay. "
            "Set it again%s; a short delay returns them at once", stream, sum(lengths.values()), self._group,
            "" if self._reads_returned else f" (without {NO_PENDING_LIST})",
        )  # fmt: skip

    def _return_due_of(self, server: Server, stream: str, retry: _RetryStream, limit: int | None) -> None:
        asked = [("XRANGE", retry.name, "-", "+", "COUNT", 1)] if retry.first is None else []
        # The delays are set again: a query of the group without retryDelay has deleted them if it began since.
        commands = [("TIME",), self._set_delays(stream), *asked]
        time_reply, _, *found = server.connection_for(retry.name).execute_all(commands)
        if asked:
            retry.first = StreamId.parse(found[0][0][0]) if found[0] else None
        clock = milliseconds(time_reply)
        self._clock_ahead = clock / 1000 - time.monotonic()
        if limit == 0 or retry.due is None or clock < retry.due:
            return
        returned_name = self._returned_names[stream]
        due = StreamId(clock - retry.delay, U64_MAX)
        moved = return_due_entries(
            server, retry.name, returned_name, self._group, due, limit, self._limits.dead_letters
        )
        retry.length -= moved
        retry.first = None
        if moved:
            self._existing.add(returned_name)
