"""Stream to a table by date, then trim: entries that are archived and acknowledged by every group leave the stream.

The job has its own group, which reads from the first entry on. It acknowledges an entry when its batch is in the table
and in Spark's commit log. Only entries that every group has acknowledged are trimmed, this group included. So every
trimmed entry is archived byte for byte, and no other group still needs it. A batch that is run again replaces its own
files.
"""

from __future__ import annotations

import time
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_streams.errors import ConfigError, RStreamError, StreamStateError
from spark_streams.jobs.exact_fields import exact_binary, exact_text
from spark_streams.jobs.job import Job, Program
from spark_streams.jobs.output.outputs import main_table
from spark_streams.jobs.output.table import SHAPE as TABLE
from spark_streams.jobs.output.table import TableConfig
from spark_streams.jobs.query import SHAPE as JOB
from spark_streams.jobs.query import Query, foreach_batch
from spark_streams.jobs.settings.config import FREE
from spark_streams.model.keys import key_beside
from spark_streams.model.times import duration
from spark_streams.options.source_options import SourceOptions
from spark_streams.sink.trim.trim import AckedTrimmer, RetentionLimits, Trimming, clock
from spark_streams.source.shard_sets import resolve_shards
from spark_streams.wire.connect import connect
from spark_streams.wire.connection.retry import is_transient
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import group_named, groups_in

SHAPE = {
    "source": FREE,
    "table": {**{key: kind for key, kind in TABLE.items() if key not in ("partition_by", "schema")}, "fields": str},
    "trim": {"enabled": bool, "keep_entries": int, "keep_for": str, "approximate": bool, "every": str},
    "job": JOB,
}
REQUIRED = ["source.streams", "source.group", "job.checkpoint"]
_MOST_REASONS = 3  # streams that are named if nothing was trimmed
_FIELDS = ("text", "binary")
# ORC's writer sorts the fields of a map, and keeps one value per name.
_ONE_VALUE_OF_A_NAME = ("orc",)


def body(job: Job) -> None:
    source = _source(job)
    trimming = _trimming(job)
    interval = _duration(job, "trim.every", "5s") / 1000
    table, fields = _table(job)
    query = Query(job, source)
    with connect(source.address) as server:
        source = replace(source, streams=resolve_shards(server, source.streams or ()))
        fresh = _groups_to_make(server, source)
    job.plan(
        **query.plan(),
        **{table.kind: f"{table.plan}; fields as {fields}"},
        trim=_planned(job, trimming),
    )
    spark = job.session()
    with connect(source.address) as server:
        _make_groups(server, source, fresh)
    schema = "`_stream` STRING, `_id` STRING, `_timestamp` TIMESTAMP, `_fields` MAP<BINARY, BINARY>"
    entries = spark.readStream.format("rstream").schema(schema).options(**_options(job)).load()
    table.check_format(spark)

    def rows_of(entries: DataFrame) -> DataFrame:
        columns = [F.col(f"_{name}").alias(name) for name in ("stream", "id", "timestamp")]
        columns.append(_exact(F.col("_fields"), fields, table.kind).alias("fields"))
        date = F.to_date(F.to_utc_timestamp("_timestamp", F.current_timezone())).alias("date")
        return entries.select(*columns, date)

    table_writer = table.open(spark, "table", table.fit(spark, rows_of(entries).schema))
    table_writer.sweep()
    trimmer = Trimmer(source, trimming, interval) if trimming else None
    query.watch(spark, [table.dataset])
    progress = query.run(
        foreach_batch(rows_of(entries), table_writer.write), trimmer.trim_if_due if trimmer else lambda: None
    )
    job.summarize(entries=progress.entries, **{table.kind: table.place}, entries_per_second=round(progress.rate))
    if trimmer:
        trimmer.trim()
        job.summarize(trimmed=trimmer.trimmed)
        if not trimmer.trimmed and (why := trimmer.why_nothing()):
            job.summarize(not_trimmed=why)


def _options(job: Job) -> dict[str, str]:
    return {**job.options("source"), "startingOffsets": "earliest"}


def _source(job: Job) -> SourceOptions:
    """Return the source's options. Raises ConfigError for options that could trim an entry before it is archived."""
    for key in ("startingOffsets", "startingTimestamp"):
        if job.get(f"source.{key}") is not None:
            raise ConfigError(f"source.{key} has no meaning here: an archive begins with the first entry; leave it out")
    if job.get("source.streamsPattern") is not None:
        raise ConfigError("source.streamsPattern has no meaning here: an archive names its streams (source.streams)")
    source = SourceOptions.parse(job.options("source"))
    if source.shards is not None:
        raise ConfigError("source.shards has no meaning here: the writer creates the shards; leave it out")
    if source.no_ack:
        raise ConfigError("source.noAck has no meaning here: an archive keeps entries pending until they are in it")
    return source


def _table(job: Job) -> tuple[TableConfig, str]:
    """Return the table of the archive, and how it holds fields: "text" or "binary". Raises ConfigError."""
    table = main_table(job.config)
    if table is None:
        raise ConfigError("table.path is missing; add it, or pass --set table.path=…")
    if table.kind in ("csv", "text"):
        raise ConfigError(
            f"{table.where}.format {table.kind!r} cannot hold the map of an entry's fields: set another format"
        )
    fields = job.get("table.fields", "text")
    if fields not in _FIELDS:
        raise ConfigError(f'{table.where}.fields must be "text" or "binary", not {fields!r}')
    if fields == "binary" and table.kind == "json":
        raise ConfigError(
            f'{table.where}.format "json" cannot hold names of fields as bytes: '
            f'set {table.where}.fields = "text", which keeps every byte, and another {table.where}.path'
        )
    return replace(table, partition_by=["date"]), fields


def _exact(entry: Column, fields: str, kind: str) -> Column:
    """Return the column `fields` of the table, which keeps every byte of an entry."""
    if fields == "text":
        return exact_text(entry)
    return exact_binary(entry) if kind in _ONE_VALUE_OF_A_NAME else entry


def _trimming(job: Job) -> Trimming | None:
    """Return the rule of [trim], None if nothing is trimmed. Raises ConfigError."""
    trim_keys = [
        key for key in ("keep_entries", "keep_for", "approximate", "every") if job.get(f"trim.{key}") is not None
    ]
    if not job.get("trim.enabled", True):
        if trim_keys:
            raise ConfigError(f"trim.{trim_keys[0]} has no meaning if trim.enabled is false: leave it out")
        return None
    if "keep_entries" in trim_keys and "keep_for" in trim_keys:
        raise ConfigError("trim.keep_entries and trim.keep_for contradict each other: give one of them")
    if job.get("trim.keep_entries", 1) < 1:
        raise ConfigError("trim.keep_entries must be at least 1; leave it out to trim every archived entry")
    age = _duration(job, "trim.keep_for") if "keep_for" in trim_keys else None
    return Trimming(
        "acked", RetentionLimits(maxlen=job.get("trim.keep_entries"), retention=age), job.get("trim.approximate", True)
    )


def _planned(job: Job, trimming: Trimming | None) -> str:
    """Return the line about trimming for `--check`."""
    if trimming is None:
        return "nothing"
    kept_entries = f", beyond MAXLEN {trimming.limits.maxlen:,}" if trimming.limits.maxlen else ""
    kept_entries = f", beyond {job.get('trim.keep_for')} old" if trimming.limits.retention else kept_entries
    return f"entries that every group has acknowledged{kept_entries}"


def _duration(job: Job, key: str, default: str = "") -> int:
    """Return the duration at a key in milliseconds. Raises ConfigError."""
    try:
        return duration(job.get(key, default))
    except ValueError as error:
        raise ConfigError(f"{key} {error}") from None


# -- only this job may have made the group -------------------------------------------------------------------------


def _mark(stream: str, group: str) -> bytes:
    """Return the key that marks a group which an archive job has made, to read from the first entry on."""
    return key_beside(stream, "archive", group)


def _groups_to_make(server: Server, source: SourceOptions) -> list[str]:
    """Return the streams that do not have the group yet. Raises StreamStateError if no archive job has made the group.

    Entries that were delivered to such a group before are not in the archive, and would be trimmed.
    """
    fresh = []
    for stream in source.streams or ():
        described = server.execute("XINFO", "GROUPS", stream) if server.execute("EXISTS", stream) else []
        if group_named(source.group, described) is None:
            fresh.append(stream)
        elif not server.execute("EXISTS", _mark(stream, source.group)):
            raise StreamStateError(
                f"group {source.group!r} of stream {stream!r} at {source.address} was not made by an archive job: "
                "entries that it has received before are not in the archive; set another source.group"
            )
    return fresh


def _make_groups(server: Server, source: SourceOptions, streams: list[str]) -> None:
    for stream in streams:
        # The mark first: a mark without a group has no effect, and a group without the mark is refused.
        server.execute("SET", _mark(stream, source.group), "1")
        try:
            server.execute("XGROUP", "CREATE", stream, source.group, "0", "MKSTREAM")
        except RStreamError:
            server.execute("DEL", _mark(stream, source.group))
            raise


class Trimmer:
    """Trims entries that are archived and acknowledged. interval: seconds; trimmed: number of entries so far."""

    def __init__(self, source: SourceOptions, trimming: Trimming, interval: float) -> None:
        self._interval = interval
        self._address = source.address
        self._streams = [stream.encode() for stream in source.streams or ()]
        self._trimming = trimming
        self._last = time.monotonic()
        self.trimmed = 0

    def trim_if_due(self) -> None:
        """Trim if the interval is over. If the server is unreachable, the next call trims."""
        if time.monotonic() - self._last < self._interval:
            return
        try:
            self.trim()
        except RStreamError as error:
            if not is_transient(error):
                raise
        self._last = time.monotonic()

    def trim(self) -> None:
        """Trim now. Raises ServerReplyError or another RStreamError."""
        with connect(self._address) as server:
            now = clock(server)
            trimmer = AckedTrimmer(server, self._trimming)
            # One call trims whole nodes, by default at most 10,000 entries.
            while trimmed := trimmer.trim(self._streams, now):
                self.trimmed += trimmed

    def why_nothing(self) -> str:
        """Return why the entries of the streams stay, such as `orders: group 'billing' has not read 5 entries`.

        Empty if the streams have no entry.
        """
        with connect(self._address) as server:
            reasons = [(stream, self._why_nothing_of(server, stream)) for stream in self._streams]
        shown = [f"{stream.decode()}: {reason}" for stream, reason in reasons if reason]
        more = f"; and {len(shown) - _MOST_REASONS:,} more streams" if len(shown) > _MOST_REASONS else ""
        return "; ".join(shown[:_MOST_REASONS]) + more

    def _why_nothing_of(self, server: Server, stream: bytes) -> str:
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
        limits = self._trimming.limits
        if limits.maxlen is not None or limits.retention is not None:
            return f"[trim] keeps its {length:,} entries (keep_entries, keep_for)"
        return f"its {length:,} entries were acknowledged after the stream was trimmed"


PROGRAM = Program(__doc__, SHAPE, REQUIRED, body)
