"""Trim streams with each chunk: by length, ID, age or memory, or only entries that all groups have acknowledged.

    maxlen             XTRIM MAXLEN: keeps this many entries
    minId, retention   XTRIM MINID: removes entries below this ID, or older by the server's clock
    retentionBytes     XTRIM MAXLEN: keeps as many entries as fit (EntrySizes); combines with the others
    trim=acked         the same thresholds, but only entries that were delivered to every group and acknowledged;
                       without a threshold, all of those. A stream without groups is not trimmed.

A stream is stored in nodes of about a hundred entries, and only whole nodes are removed (`~`): a stream may keep a node
more than its threshold.

For retentionBytes, the task sends MEMORY USAGE after the first chunk to a stream, and then every 32 chunks. The server
samples a few nodes and replies in well under a millisecond, for a stream of any length. The reply includes pending
lists, which some servers count several times (docs/internals/facts.md). So an entry counts at most the bytes of the
commands that were sent for it: pending lists never shorten a stream.

Since Redis 8.2, XTRIM … ACKED removes acknowledged entries also behind an entry that is still pending. Other servers
get MINID with the lowest ID that a group still needs (connector/retention.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.retention import Readers, RetentionState
from spark_streams.connector.sink.chunks import Chunk
from spark_streams.connector.wire.connection import Server, pack
from spark_streams.connector.wire.replies import is_syntax_error, milliseconds
from spark_streams.connector.wire.session import Session

ASK_EVERY = 32  # chunks


@dataclass(frozen=True)
class Trimming:
    """How streams are trimmed. None: no limit."""

    acked: bool  # only what every group has acknowledged
    maxlen: int | None = None  # entries
    min_id: str | None = None  # the lowest ID
    retention: int | None = None  # milliseconds
    max_bytes: int | None = None  # of memory

    def commands(self, stream: bytes, now: int, max_entries: int | None) -> list[list[str | bytes]]:
        """Return the XTRIMs that are sent with a chunk. now, max_entries: as for `thresholds`."""
        return [] if self.acked else [self.words(stream, *one) for one in self.thresholds(now, max_entries)]

    def thresholds(self, now: int, max_entries: int | None = None) -> list[tuple[str, str]]:
        """Return all thresholds that apply: (MAXLEN or MINID, its argument). now: Unix ms of the server; max_entries:
        number of entries that fit into max_bytes, None: not known."""
        thresholds = []
        lengths = [length for length in (self.maxlen, max_entries) if length is not None]
        if lengths:
            thresholds.append(("MAXLEN", str(min(lengths))))
        if self.min_id is not None:
            thresholds.append(("MINID", self.min_id))
        if self.retention is not None:
            thresholds.append(("MINID", f"{max(now - self.retention, 0)}-0"))
        return thresholds

    def words(self, stream: bytes, kind: str, threshold: str, limit: int | None = None) -> list[str | bytes]:
        """Return the arguments of an XTRIM. limit: the most entries that it may remove."""
        words: list[str | bytes] = ["XTRIM", stream, kind, "~", threshold]
        return words if limit is None else [*words, "LIMIT", str(limit)]


class Trimmer:
    """Trims the streams of one task. The task asks for the server's time once, and then follows its own clock."""

    def __init__(self, session: Session, options: SinkOptions) -> None:
        self._session = session
        self._trimming = Trimming(
            options.trim == "acked", options.maxlen, options.min_id, options.retention, options.retention_bytes
        )
        # A connection of its own: replies may be outstanding on the task's. A chunk was sent, so the address is right.
        self._trim_session = Session(session.address, is_known=True)
        self._acked: AckedTrimmer | None = None
        self._sizes = None if options.retention_bytes is None else EntrySizes(options.retention_bytes)
        self._clock_offset: int | None = None  # the server's clock minus our monotonic one, milliseconds

    def commands(self, chunk: Chunk) -> list[bytes]:
        """Return the packed XTRIMs that are sent with a chunk."""
        now = self._now()  # also for trim_after: at the first call no reply is outstanding
        return [pack(*words) for words in self._commands(chunk.stream_names, now)]

    def trim_after(self, chunk: Chunk) -> None:
        """Trim after the replies to a chunk: for trim=acked, and if the size of entries was not known before."""
        due = [] if self._sizes is None else self._sizes.count(chunk)
        acked = self._trimming.acked
        if due or acked:
            now = self._now()
            self._trim_session.run(lambda server: self._trim(server, due, chunk.stream_names if acked else [], now))

    def _trim(self, server: Server, due: Sequence[bytes], acked: Sequence[bytes], now: int) -> None:
        if due and self._sizes is not None:
            self._sizes.ask(server, due)
            server.execute_all(self._commands(due, now))
        if acked:
            if self._acked is None or self._acked.server is not server:  # it may lead to another server
                self._acked = AckedTrimmer(server, self._trimming)
            self._acked.trim(acked, now, {stream: self._max_entries(stream) for stream in acked})

    def _commands(self, streams: Sequence[bytes], now: int) -> list[list[str | bytes]]:
        return [
            words for stream in streams for words in self._trimming.commands(stream, now, self._max_entries(stream))
        ]

    def _max_entries(self, stream: bytes) -> int | None:
        return None if self._sizes is None else self._sizes.max_entries(stream)

    def close(self) -> None:
        """Close the connection that trim=acked uses."""
        self._trim_session.close()

    def _now(self) -> int:
        if self._trimming.retention is None:
            return 0
        if self._clock_offset is None:
            self._clock_offset = self._session.run(clock) - _monotonic_ms()
        return _monotonic_ms() + self._clock_offset


def clock(server: Server) -> int:
    """Return the server's time in Unix ms; in a cluster, the earliest of all nodes, to trim no entry early."""
    return min(milliseconds(node.execute("TIME")) for node in server.nodes())


class AckedTrimmer:
    """trim=acked on one server. The first XTRIM … ACKED shows whether the server knows ACKED."""

    def __init__(self, server: Server, trimming: Trimming) -> None:
        self.server = server
        self._trimming = trimming
        self._readers = Readers()
        self._knows_acked = True  # until the server says that it does not

    def trim(self, streams: Sequence[bytes], now: int, max_entries: Mapping[bytes, int | None] | None = None) -> int:
        """Trim the streams. Return the number of removed entries. max_entries: per stream, as in Trimming. Raises
        ServerReplyError and its subclasses."""
        return sum(
            self._trim(stream, state, *threshold)
            for stream, state in self._readers.fetch(self.server, streams).items()
            if state.readers
            for threshold in self._thresholds(now, (max_entries or {}).get(stream))
        )

    def _thresholds(self, now: int, max_entries: int | None) -> list[tuple[str, str]]:
        """Return the thresholds. Without one, all acknowledged entries are removed; if one is not known yet, none."""
        thresholds = self._trimming.thresholds(now, max_entries)
        return thresholds if thresholds or self._trimming.max_bytes is not None else [("MINID", str(MAX_ID))]

    def _trim(self, stream: bytes, state: RetentionState, kind: str, threshold: str) -> int:
        if self._knows_acked:
            words = [*self._trimming.words(stream, kind, threshold), "ACKED"]
            [reply] = self.server.execute_all([words], is_syntax_error)
            if not is_syntax_error(reply):
                return int(reply)
            self._knows_acked = False
        return self._trim_up_to(stream, state.needed, kind, threshold)

    def _trim_up_to(self, stream: bytes, needed: StreamId, kind: str, threshold: str) -> int:
        execute = self.server.execute
        if kind == "MINID":
            lower = min(needed, StreamId.parse(threshold))
            return int(execute(*self._trimming.words(stream, "MINID", str(lower))))
        excess = execute("XLEN", stream) - int(threshold)
        if excess <= 0:
            return 0
        return int(execute(*self._trimming.words(stream, "MINID", str(needed), limit=excess)))


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass
class _StreamSize:
    """What a task knows of the size of a stream's entries."""

    sent: int = 0  # bytes of all chunks so far
    rows: int = 0  # of all chunks so far
    since: int = 0  # chunks since the last MEMORY USAGE
    size: float | None = None  # bytes of an entry; None: not known yet


class EntrySizes:
    """Entry sizes of one task's streams. max_bytes: of one stream."""

    def __init__(self, max_bytes: int) -> None:
        self._most_bytes = max_bytes
        self._streams: dict[bytes, _StreamSize] = {}

    def max_entries(self, stream: bytes) -> int | None:
        """Return how many entries the stream may have; None if that is not known yet."""
        state = self._streams.get(stream)
        return None if state is None or state.size is None else max(1, int(self._most_bytes / state.size))

    def count(self, chunk: Chunk) -> list[bytes]:
        """Count a written chunk. Return those of its streams whose entry size is due to be asked for."""
        offsets = chunk.requests.offsets
        due = []
        for stream, start, stop in chunk.segments:
            state = self._streams.setdefault(stream, _StreamSize())
            state.sent += int(offsets[stop] - offsets[start])
            state.rows += stop - start
            if state.since == 0:
                due.append(stream)
            state.since = (state.since + 1) % ASK_EVERY
        return due

    def ask(self, server: Server, streams: Sequence[bytes]) -> None:
        """Ask for the size of these streams' entries, in one round trip. Raises ServerReplyError and its subclasses."""
        commands = [command for stream in streams for command in (("MEMORY", "USAGE", stream), ("XLEN", stream))]
        replies = server.execute_all(commands)
        for stream, usage, length in zip(streams, replies[0::2], replies[1::2], strict=True):
            state = self._streams[stream]
            if usage and length:
                state.size = min(usage / length, state.sent / state.rows)
