"""[trim]: trims entries that are archived and that every group has acknowledged."""

from __future__ import annotations

import time
from collections.abc import Sequence

from spark_streams.base.times import duration
from spark_streams.connector.errors import ConfigError, RStreamError
from spark_streams.connector.sink.trim import AckedTrimmer, RetentionLimits, Trimming, clock
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection.retry import is_transient
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import groups_in
from spark_streams.jobs.job import Job
from spark_streams.jobs.part import Facts, Written
from spark_streams.jobs.parts.source import Source

_MOST_REASONS = 3  # streams that are named if nothing was trimmed


class Trim(Written):
    """Trims the streams of a source, unless `trim.enabled` is false.

    Args:
        job: The job, with its configuration.
        source: The source, whose group has archived what it has acknowledged.

    Raises:
        ConfigError: A key contradicts another one.
    """

    KEYS = {"trim": {"enabled": bool, "keep_entries": int, "keep_for": str, "every": str}}

    def __init__(self, job: Job, source: Source) -> None:
        self._address = source.options.address
        self._trimming = _trimming(job)
        self._interval = _duration(job, "trim.every", "5s") / 1000
        self._keep_for = job.get("trim.keep_for")
        self._streams: list[bytes] = []
        self._last = time.monotonic()
        self._trimmed = 0

    def plan(self) -> Facts:
        if self._trimming is None:
            return {"trim": "nothing"}
        limits = self._trimming.limits
        kept_entries = f", beyond MAXLEN {limits.maxlen:,}" if limits.maxlen else ""
        kept_entries = f", beyond {self._keep_for} old" if limits.retention else kept_entries
        return {"trim": f"entries that every group has acknowledged{kept_entries}"}

    def open(self, streams: Sequence[str]) -> None:
        self._streams = [stream.encode() for stream in streams]
        self._last = time.monotonic()

    def trim_if_due(self) -> None:
        """Trim if the interval `trim.every` is over. If the server is unreachable, the next call trims."""
        if self._trimming is None or time.monotonic() - self._last < self._interval:
            return
        try:
            self.trim()
        except RStreamError as error:
            if not is_transient(error):
                raise
        self._last = time.monotonic()

    def trim(self) -> None:
        """Trim now. Raises ServerReplyError or another RStreamError."""
        if self._trimming is None:
            return
        with connect(self._address) as server:
            now = clock(server)
            trimmer = AckedTrimmer(server, self._trimming)
            # One call trims whole nodes, by default at most 10,000 entries.
            while trimmed := trimmer.trim(self._streams, now):
                self._trimmed += trimmed

    def summary(self) -> Facts:
        if self._trimming is None:
            return {}
        why = "" if self._trimmed else self._why_nothing(self._trimming)
        return {"trimmed": self._trimmed, **({"not_trimmed": why} if why else {})}

    def _why_nothing(self, trimming: Trimming) -> str:
        """Return why the entries of the streams stay, such as `orders: group 'billing' has not read 5 entries`.

        Empty if the streams have no entry.
        """
        with connect(self._address) as server:
            reasons = [(stream, _why_nothing_of(server, stream, trimming)) for stream in self._streams]
        shown = [f"{stream.decode()}: {reason}" for stream, reason in reasons if reason]
        more = f"; and {len(shown) - _MOST_REASONS:,} more streams" if len(shown) > _MOST_REASONS else ""
        return "; ".join(shown[:_MOST_REASONS]) + more


def _why_nothing_of(server: Server, stream: bytes, trimming: Trimming) -> str:
    length, described = server.execute_all([("XLEN", stream), ("XINFO", "GROUPS", stream)])
    groups = groups_in(described)
    for group in groups if length else ():
        name = group.name.decode(errors="backslashreplace")
        if group.pending:
            return f"group {name!r} has not acknowledged {group.pending:,} entries"
        if group.lag != 0:
            unread = "an unknown number of" if group.lag is None else f"{group.lag:,}"
            return f"group {name!r} has not read {unread} entries"
    if not length:
        return ""
    limits = trimming.limits
    if limits.maxlen is not None or limits.retention is not None:
        return f"[trim] keeps its {length:,} entries (keep_entries, keep_for)"
    return f"its {length:,} entries were acknowledged after the stream was trimmed"


def _trimming(job: Job) -> Trimming | None:
    """Return the rule of [trim], None if nothing is trimmed. Raises ConfigError."""
    trim_keys = [key for key in ("keep_entries", "keep_for", "every") if job.get(f"trim.{key}") is not None]
    if not job.get("trim.enabled", True):
        if trim_keys:
            raise ConfigError(f"trim.{trim_keys[0]} has no meaning if trim.enabled is false: leave it out")
        return None
    if "keep_entries" in trim_keys and "keep_for" in trim_keys:
        raise ConfigError("trim.keep_entries and trim.keep_for contradict each other: give one of them")
    if job.get("trim.keep_entries", 1) < 1:
        raise ConfigError("trim.keep_entries must be at least 1; leave it out to trim every archived entry")
    age = _duration(job, "trim.keep_for") if "keep_for" in trim_keys else None
    limits = RetentionLimits(maxlen=job.get("trim.keep_entries"), retention=age)
    return Trimming(acked=True, limits=limits)


def _duration(job: Job, key: str, default: str = "") -> int:
    """Return the duration at a key in milliseconds. Raises ConfigError."""
    try:
        return duration(job.get(key, default))
    except ValueError as error:
        raise ConfigError(f"{key} {error}") from None
