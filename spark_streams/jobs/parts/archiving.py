"""[table] and [trim] of an archive: the entries of streams by date, with every byte, and what is trimmed.

A map of strings holds only UTF-8, and a map has each name once. An entry that does not fit is written as one field,
`rstream:hex`: all names and values in hexadecimal, separated by one blank, `name value name value …`, in the entry's
order. An entry with a field of this name is written in the same way, so that the form is unambiguous.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_streams.connector.errors import ConfigError, RStreamError, StreamStateError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.sink.trim import AckedTrimmer, Trimming, clock
from spark_streams.connector.source.archive import HEX
from spark_streams.connector.source.stream_names import resolve_shards
from spark_streams.connector.watch.lineage.datasets import Dataset
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.session import is_transient
from spark_streams.connector.wire.xinfo import group_named, groups_in
from spark_streams.jobs.job import Facts, Job, WrittenPart
from spark_streams.jobs.output.owned_table import OwnedTable
from spark_streams.jobs.output.ownership import Claimant, check_places, other_places
from spark_streams.jobs.output.table_config import SHAPE as TABLE
from spark_streams.jobs.output.table_config import TableConfig
from spark_streams.jobs.parts.outputs import checked_table, main_table
from spark_streams.jobs.parts.source_and_sink import Source


def exact_text(fields: Column) -> Column:
    """Convert a column MAP<BINARY, BINARY> into MAP<STRING, STRING>."""
    is_text = F.forall(F.map_keys(fields), _is_utf8) & F.forall(F.map_values(fields), _is_utf8)
    text = F.when(is_text & _has_each_name_once(fields), fields.cast("MAP<STRING, STRING>"))
    return text.otherwise(F.create_map(F.lit(HEX), _as_hex(fields)))


def exact_binary(fields: Column) -> Column:
    """Return such a column as MAP<BINARY, BINARY> for formats that keep only one value per name."""
    in_hex = F.create_map(F.lit(HEX.encode()), _as_hex(fields).cast("BINARY"))
    return F.when(_has_each_name_once(fields), fields).otherwise(in_hex)


def _has_each_name_once(fields: Column) -> Column:
    """Return a column: whether each name occurs once, and none is `rstream:hex`."""
    names = F.transform(F.map_keys(fields), F.hex)  # array_distinct compares BINARY pair by pair
    once = F.size(F.array_distinct(names)) == F.size(names)
    return once & ~F.array_contains(names, HEX.encode().hex().upper())


def _as_hex(fields: Column) -> Column:
    return F.array_join(
        F.transform(F.map_entries(fields), lambda field: F.concat_ws(" ", F.hex(field["key"]), F.hex(field["value"]))),
        " ",
    )


def _is_utf8(word: Column) -> Column:
    return F.is_valid_utf8(word.cast("STRING"))


class Archive(WrittenPart):
    """Table of entries, by date.

    Attributes:
        SCHEMA: What the source must read.

    Raises:
        ConfigError: `[table]` is missing or cannot hold an entry.
    """

    KEYS = {
        "table": {**{key: kind for key, kind in TABLE.items() if key not in ("partition_by", "schema")}, "fields": str}
    }
    SCHEMA = "`_stream` STRING, `_id` STRING, `_timestamp` TIMESTAMP, `_fields` MAP<BINARY, BINARY>"

    def __init__(self, job: Job) -> None:
        self._job = job
        self._table, self._fields = _table(job)
        if self._table.folder is not None:
            check_places([self._table.folder], other_places(job.config, job.files))
        self._owned: OwnedTable | None = None

    def plan(self) -> Facts:
        changes = self._owned.fit.plan if self._owned else ""
        return {self._table.kind: "; ".join(filter(None, (self._table.plan, f"fields as {self._fields}", changes)))}

    def rows(self, entries: DataFrame) -> DataFrame:
        """Return the rows of the table.

        Raises:
            ConfigError: Spark cannot write the format.
            TableError: The rows do not fit a table that exists, or it belongs to another query.
        """
        columns = [F.col(f"_{name}").alias(name) for name in ("stream", "id", "timestamp")]
        fields = F.col("_fields")
        if self._fields == "text":
            fields = exact_text(fields)
        elif self._table.kind == "orc":  # its writer sorts the fields of a map, and keeps one value per name
            fields = exact_binary(fields)
        columns.append(fields.alias("fields"))
        date = F.to_date(F.to_utc_timestamp("_timestamp", F.current_timezone())).alias("date")
        rows = entries.select(*columns, date)
        claimant = Claimant.of_job(self._job, entries.sparkSession)
        self._owned = checked_table(self._table, "table", entries.sparkSession, rows.schema, claimant)
        return rows

    def datasets(self) -> Iterable[Dataset | None]:
        return [self._table.dataset]

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch. If it is run again, it replaces its rows. number: of the batch."""
        assert self._owned is not None
        self._owned.write(rows, number)

    def summary(self) -> Facts:
        return {self._table.kind: self._table.place}


def _table(job: Job) -> tuple[TableConfig, str]:
    """Return the table, and how it holds fields: "text" or "binary". Raises ConfigError."""
    table = main_table(job.config)
    if table is None:
        raise ConfigError("table.path is missing; add it, or pass --set table.path=…")
    if table.kind in ("csv", "text"):
        raise ConfigError(
            f"{table.where}.format {table.kind!r} cannot hold the map of an entry's fields: set another format"
        )
    fields = job.get("table.fields", "text")
    if fields not in ("text", "binary"):
        raise ConfigError(f'{table.where}.fields must be "text" or "binary", not {fields!r}')
    if fields == "binary" and table.kind == "json":
        raise ConfigError(
            f'{table.where}.format "json" cannot hold names of fields as bytes: '
            f'set {table.where}.fields = "text", which keeps every byte, and another {table.where}.path'
        )
    return replace(table, partition_by=["date"]), fields


class ArchivedGroup(WrittenPart):
    """Consumer group of an archive. The job makes it, to read from the first entry on, on each stream without it.

    Raises ConfigError if an option of the source would let the job trim an entry before it is archived, and
    StreamStateError if no archive job has made the group.
    """

    def __init__(self, job: Job, source: Source) -> None:
        _check_source(job, source)
        self._address, self._group = source.options.address, source.options.group
        with connect(self._address) as server:
            self._fresh = self._streams_without(server, resolve_shards(server, source.options.streams or ()))

    def open(self, streams: Sequence[str]) -> None:
        with connect(self._address) as server:
            for stream in self._fresh:
                self._make(server, stream)

    def _streams_without(self, server: Server, streams: Sequence[str]) -> list[str]:
        """Return the streams that do not have the group yet. Raises StreamStateError if no archive job has made it.

        Entries that were delivered to such a group before are not in the archive, and would be trimmed.
        """
        fresh = []
        for stream in streams:
            described = server.execute("XINFO", "GROUPS", stream) if server.execute("EXISTS", stream) else []
            if group_named(self._group, described) is None:
                fresh.append(stream)
            elif not server.execute("EXISTS", self._mark(stream)):
                raise StreamStateError(
                    f"group {self._group!r} of stream {stream!r} at {self._address} was not made by an archive job: "
                    "entries that it has received before are not in the archive; set another source.group"
                )
        return fresh

    def _make(self, server: Server, stream: str) -> None:
        # The mark first: a mark without a group has no effect, and a group without the mark is refused.
        server.execute("SET", self._mark(stream), "1")
        try:
            server.execute("XGROUP", "CREATE", stream, self._group, "0", "MKSTREAM")
        except RStreamError:
            server.execute("DEL", self._mark(stream))
            raise

    def _mark(self, stream: str) -> bytes:
        """Return the key that marks the group as made by an archive job, to read from the first entry on."""
        return key_beside(stream, "archive", self._group)


_WITHOUT_MEANING = {
    "startingOffsets": "an archive begins with the first entry; leave it out",
    "startingTimestamp": "an archive begins with the first entry; leave it out",
    "streamsPattern": "an archive names its streams (source.streams)",
    "shards": "the writer creates the shards; leave it out",
    "noAck": "an archive keeps entries pending until they are in it",
}


def _check_source(job: Job, source: Source) -> None:
    for key, why in _WITHOUT_MEANING.items():
        if job.get(f"source.{key}") is not None and (key != "noAck" or source.options.no_ack):
            raise ConfigError(f"source.{key} has no meaning here: {why}")


_MOST_REASONS = 3  # streams that are named if nothing was trimmed


class Trim(WrittenPart):
    """Trims the streams of a source whose group has archived what it has acknowledged, unless `trim.enabled` is false.
    Raises ConfigError if a key contradicts another one."""

    KEYS = {"trim": {"enabled": bool, "keep_entries": int, "keep_for": str, "every": str}}

    def __init__(self, job: Job, source: Source) -> None:
        self._address = source.options.address
        self._trimming = _trimming(job)
        self._interval = job.duration("trim.every", "5s") / 1000
        self._keep_for = job.get("trim.keep_for")
        self._streams: list[bytes] = []
        self._last = time.monotonic()
        self._trimmed = 0

    def plan(self) -> Facts:
        trimming = self._trimming
        if trimming is None:
            return {"trim": "nothing"}
        kept_entries = f", beyond MAXLEN {trimming.maxlen:,}" if trimming.maxlen else ""
        kept_entries = f", beyond {self._keep_for} old" if trimming.retention else kept_entries
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
    if trimming.maxlen is not None or trimming.retention is not None:
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
    age = job.duration("trim.keep_for") if "keep_for" in trim_keys else None
    return Trimming(acked=True, maxlen=job.get("trim.keep_entries"), retention=age)
