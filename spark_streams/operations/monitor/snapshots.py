"""Snapshots of a server for `rstream exporter`: its streams and groups, their memory, dead letters by reason, entries
that wait for a retry. No query needs to run.

A snapshot reads the streams in portions, smaller ones if entries are large. So its memory does not depend on the size
of entries, and it can stop when its time is over. Of dead letters it reads a few pages: new ones, and all again if some
were removed. A stream of millions is counted over several snapshots.

Scrapes share a snapshot: a scrape within a few seconds gets the last one, a scrape during a snapshot waits for it. So
the server's load does not depend on the number of scrapes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spark_streams.base.ids import StreamId, is_time
from spark_streams.base.pattern import is_pattern
from spark_streams.base.printable import name_text
from spark_streams.connector.admin.dead_letters import (
    DEAD_LETTER_LIMITS,
    FIRST_STREAMS,
    REASONS,
    KindCounts,
    PageSize,
    ReasonCounts,
    pages_of,
    read_page,
)
from spark_streams.connector.admin.groups import WaitingEntries, waiting_entries, waiting_of
from spark_streams.connector.deadletter.envelope import raw
from spark_streams.connector.errors import NotPermittedError, RStreamError, ServerError, ServerUnreachableError
from spark_streams.connector.keys import read_retry_stream
from spark_streams.connector.lag.margin import Margin, MarginWindow, NodeMemory, node_memories
from spark_streams.connector.lag.survey import GroupLag, Refused, StreamSummary, survey
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import KeptConnection
from spark_streams.connector.wire.connection import ReplyTooLargeError, Server
from spark_streams.connector.wire.scan import (
    LONGEST_NAME,
    MOST_STREAMS,
    Bounded,
    bounded,
    list_streams,
    matching_streams,
    names_and_patterns,
)
from spark_streams.operations.monitor.held import Held, held_in, stream_sizes

_SEARCH_INTERVAL = 10.0  # seconds between two searches for new streams, and ten times the duration of the last search

Name = str | bytes


class StreamFilter:
    """The streams of these names and patterns (named_streams.py), or all: the named ones, then the first
    others by name, up to `max_streams`."""

    def __init__(
        self, names: Sequence[str] = (), max_streams: int = MOST_STREAMS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.words = names
        self._max_streams = max_streams
        self._now = now
        self._streams: Sequence[Name] = ()
        self._search_again_at = float("-inf")  # time of the next search
        self.too_many = 0  # streams beyond `max_streams`
        self.too_long = 0  # streams whose names are too long for a list

    @property
    def left_out(self) -> int:
        """Number of streams that are left out."""
        return self.too_many + self.too_long

    def streams(self, server: Server) -> Sequence[Name]:
        """Return the streams, searched a few seconds ago at most. A named stream may not exist. Raises ServerError."""
        began = self._now()
        if began >= self._search_again_at:
            found = self._refresh(server)
            self.too_many, self.too_long = found.too_many, found.too_long
            self._streams = found.streams
            ended = self._now()
            self._search_again_at = ended + max(_SEARCH_INTERVAL, 10 * (ended - began))
        return self._streams

    def _refresh(self, server: Server) -> Bounded[str] | Bounded[bytes]:
        if not self.words:
            return bounded(list_streams(server), most=self._max_streams)
        words = names_and_patterns(server, self.words)
        streams = words.names.union(*[matching_streams(server, pattern, ()) for pattern in words.patterns])
        return bounded(streams, lambda _: words.names, self._max_streams)


SECONDS = 1.0  # per snapshot for reading dead letters: some 60,000 of 250 bytes
_SHOWN_REASON = 100  # characters of a reason


@dataclass(frozen=True)
class Reason:
    """The number of dead letters of a stream with this reason."""

    stream: str
    reason: str
    count: int
    newest_ms: int | None  # time of the newest one, by its ID; None: the IDs are not times


@dataclass
class _StreamProgress:
    counts: ReasonCounts
    size: PageSize


class CountedDeadLetters:
    """Counts of all streams that hold dead letters. now: a monotonic clock, in seconds."""

    def __init__(
        self,
        seconds: float = SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._seconds, self._now = DEAD_LETTER_LIMITS, seconds, now
        self._progress: dict[str, _StreamProgress] = {}

    def refresh(
        self,
        server: Server,
        streams: Sequence[StreamSummary],
        keys: Mapping[str, str | bytes],
        refused: Refused,
    ) -> None:
        """Continue to count for some time. keys: by the displayed name of a stream. refused: receives an error for each
        stream that the user may not read. Raises ServerError."""
        # Entries that wait for a retry have the same format, but are not dead letters yet.
        dead_letter_streams = {
            stream.stream: stream
            for stream in streams
            if stream.has_dead_letters and read_retry_stream(stream.stream) is None
        }
        for name in self._progress.keys() - dead_letter_streams.keys():
            del self._progress[name]
        for name, stream in dead_letter_streams.items():
            progress = self._progress.setdefault(name, _StreamProgress(ReasonCounts(), PageSize(self._limits)))
            progress.counts.update(
                stream.length, StreamId.parse(stream.first), StreamId.parse(stream.last), stream.added
            )
        self._read(server, keys, refused)

    def _read(self, server: Server, keys: Mapping[str, str | bytes], refused: Refused) -> None:
        """Read a page of each stream in turn, until all are counted or the time is over."""
        deadline = self._now() + self._seconds
        turns = deque(name for name, progress in self._progress.items() if progress.counts.next_range is not None)
        while turns and self._now() < deadline:
            name = turns.popleft()
            progress = self._progress.pop(name)
            self._progress[name] = progress  # last, so that the next snapshot begins with another stream
            try:
                self._page(server, keys[name], progress)
            except NotPermittedError as error:
                refused(error)
                continue
            if progress.counts.next_range is not None:
                turns.append(name)

    @staticmethod
    def _page(server: Server, key: str | bytes, progress: _StreamProgress) -> None:
        id_range = progress.counts.next_range
        assert id_range is not None
        first, last = id_range
        page_entries = progress.size.next()
        try:
            page, received = read_page(server, key, first, last, progress.size)
        except ReplyTooLargeError:
            progress.size.too_large()
            # The connection was closed. On the next one, fewer entries are requested.
            raise ServerUnreachableError(f"a page of dead letters at {server.address} was too large") from None
        counts = KindCounts(max_kinds=REASONS)
        rows = np.flatnonzero(page.are_dead_letters())
        counts.add(page.ids, [page.envelope_column("reason")], rows)
        progress.size.learn(page.count, received, len(rows))
        is_whole = page.count < page_entries
        progress.counts.read(last if is_whole else StreamId.parse(page.ids[page.count - 1].as_py()), page.count, counts)

    @property
    def reasons(self) -> list[Reason]:
        """The counts so far, by stream and reason."""
        now_ms = time.time_ns() // 1_000_000
        reasons: dict[tuple[str, str], Reason] = {}
        for name, progress in sorted(self._progress.items()):
            for (reason,), count in progress.counts.counts:
                shown = raw(reason).decode("utf-8", "backslashreplace")[:_SHOWN_REASON]
                previous = reasons.get((name, shown), Reason(name, shown, 0, None))
                last = StreamId.parse(count.last)
                newest = max(previous.newest_ms or 0, last.ms) if is_time(last, now_ms) else previous.newest_ms
                reasons[name, shown] = Reason(name, shown, previous.count + count.letters, newest)
        return list(reasons.values())

    @property
    def uncounted(self) -> dict[str, int]:
        """The number of entries of each stream that are not counted yet."""
        return {name: progress.counts.uncounted for name, progress in sorted(self._progress.items())}


@dataclass(frozen=True)
class Snapshot:
    """Streams and groups as in a survey, and what else the exporter shows."""

    streams: tuple[StreamSummary, ...]
    groups: tuple[GroupLag, ...]
    stream_bytes: dict[str, int]  # by stream
    nodes: tuple[NodeMemory, ...]
    reasons: tuple[Reason, ...]
    uncounted: dict[str, int]  # dead letters by stream
    waiting: tuple[WaitingEntries, ...]  # entries that wait for a retry
    seconds: float  # that the snapshot took
    margins: Mapping[tuple[str, str], Margin]  # by stream and group
    groups_left_out: int = 0  # beyond the maximum

    @property
    def held(self) -> list[Held]:
        """Groups that hold entries back."""
        return held_in(self.streams, self.groups, self.stream_bytes)


def take_snapshot(
    server: Server,
    names: Sequence[str | bytes],
    dead_letters: CountedDeadLetters,
    margins: MarginWindow,
    refused: Refused,
    max_seconds: float,
    max_groups: int,
    now: Callable[[], float] = time.monotonic,
) -> Snapshot:
    """Return a snapshot of these streams; missing streams are left out. margins: what earlier snapshots saw, to which
    this one is added; refused: receives an error for each missing right; max_groups: of all streams together, the
    others are only counted. Raises ServerError, also if the snapshot takes longer than `max_seconds`.
    """
    began = now()
    streams: list[StreamSummary] = []
    groups: list[GroupLag] = []
    sizes: dict[str, int] = {}
    size, done, left_out, at_ms = PageSize(first=FIRST_STREAMS), 0, 0, 0
    for keys in pages_of(names, size):
        if now() - began > max_seconds:
            raise ServerError(
                f"the snapshot took longer than {max_seconds:g} s: {done:,} of {len(names):,} streams at "
                f"{server.address} in {now() - began:.1f} s; name fewer streams, or set a larger --time-limit"
            )
        done += len(keys)
        seen = survey(server, keys, refused=refused, max_groups=max_groups - len(groups))
        left_out += seen.left_out
        streams += seen.streams
        groups += seen.groups
        existing = {stream.stream for stream in seen.streams}
        size.learn(len(keys), sum(stream.end_bytes for stream in seen.streams), len(keys))
        sizes.update(stream_sizes(server, [key for key in keys if name_text(key) in existing], refused))
        margins.add(seen, sizes)
        at_ms = seen.at_ms
    nodes = node_memories(server, refused)
    if at_ms:  # there are streams
        margins.add_memory(nodes, at_ms)
    margins.keep(stream.stream for stream in streams)
    dead_letters.refresh(server, streams, {name_text(key): key for key in names}, refused)
    return Snapshot(
        tuple(streams),
        tuple(groups),
        sizes,
        tuple(nodes),
        tuple(dead_letters.reasons),
        dead_letters.uncounted,
        _waiting(server, names, groups, refused),
        now() - began,
        margins.margins((group.stream, group.group) for group in groups),
        left_out,
    )


def _waiting(
    server: Server, names: Sequence[str | bytes], groups: Sequence[GroupLag], refused: Refused
) -> tuple[WaitingEntries, ...]:
    """Return the entries that wait for a retry: of these groups, and in retry streams among these streams."""
    raw = [name.encode() if isinstance(name, str) else name for name in names]
    try:
        waiting = [
            *waiting_of(server, [(group.stream, group.group) for group in groups]),
            *waiting_entries(server, raw),
        ]
    except NotPermittedError as error:
        refused(error)
        return ()
    return tuple({entries.waits_in: entries for entries in waiting}.values())


MAX_GROUPS = 10_000  # by default
_NAMED = 50  # maximum number of missing rights, and of missing streams, that are named


class SnapshotCache:
    """The current snapshot of one server, for any thread.

    max_age: seconds for which a snapshot is used; max_seconds: that it may take; tell: receives one line for each
    problem when it begins, and when the server answers again; dead_letter_seconds: per snapshot for reading dead
    letters; now: a monotonic clock, in seconds; max_groups: the others are only counted.
    """

    def __init__(
        self,
        address: Address,
        stream_filter: StreamFilter,
        max_age: float,
        max_seconds: float,
        tell: Callable[[str], None],
        dead_letter_seconds: float = SECONDS,
        now: Callable[[], float] = time.monotonic,
        max_groups: int = MAX_GROUPS,
    ) -> None:
        self.stream_filter = stream_filter
        self._max_groups = max_groups
        self._max_age, self._max_seconds = max_age, max_seconds
        self._tell, self._now = tell, now
        self._connection = KeptConnection(address, lambda error: tell(str(error)))
        self._dead_letters = CountedDeadLetters(seconds=dead_letter_seconds, now=now)
        self._margins = MarginWindow()
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._until = float("-inf")
        self._reported: set[str] = set()
        self._rights: dict[str, None] = {}

    def last(self) -> Snapshot | None:
        """Return a snapshot that is at most `max_age` seconds old; None if the server does not answer."""
        with self._lock:
            if self._now() >= self._until:
                did_answer = self._connection.answers
                self._last = None
                if self._connection.use(self._refresh) and not did_answer:
                    self._tell(f"{self._connection.address} answers again")
                self._until = self._now() + self._max_age
            return self._last

    @property
    def failure(self) -> RStreamError | None:
        """Why the last snapshot failed."""
        return self._connection.failure

    @property
    def rights(self) -> Sequence[str]:
        """The rights that the user lacks, as ACL SETUSER writes them."""
        return tuple(self._rights)

    def close(self, wait: float = 1.0) -> None:
        """Close the connection, unless a snapshot is being taken for longer than `wait` seconds."""
        if self._lock.acquire(timeout=wait):
            try:
                self._connection.close()
            finally:
                self._lock.release()

    def _refresh(self, server: Server) -> None:
        self._rights.clear()
        names = self.stream_filter.streams(server)
        self._last = take_snapshot(
            server,
            names,
            self._dead_letters,
            self._margins,
            self._is_refused,
            self._max_seconds,
            self._max_groups,
            self._now,
        )
        existing = {stream.stream for stream in self._last.streams}
        named = {name_text(word) for word in self.stream_filter.words if not is_pattern(word)}
        missing = sorted(named - existing)
        for name in missing[:_NAMED]:
            self._report_once(f"stream {name!r} does not exist yet at {server.address}")
        if left_out := self._last.groups_left_out:
            address = self._connection.address
            self._report_once(f"{left_out:,} more groups at {address} are left out; use --max-groups", "groups")
        if too_many := self.stream_filter.too_many:
            self._report_once(f"{too_many:,} more streams at {server.address} are left out; use --max-streams")
        if too_long := self.stream_filter.too_long:
            why = f"names of more than {LONGEST_NAME:,} bytes"
            self._report_once(f"{too_long:,} streams at {server.address} are left out: they have {why}")

    def _is_refused(self, error: RStreamError) -> None:
        if not isinstance(error, NotPermittedError):
            self._report_once(str(error))
            return
        if len(self._rights) < _NAMED:
            self._rights[error.right] = None
        self._report_once(str(error), error.right)

    def _report_once(self, line: str, about: str = "") -> None:
        """Report a line once for each subject."""
        about = about or line
        if about not in self._reported and len(self._reported) < 10 * _NAMED:
            self._reported.add(about)
            self._tell(line)
