"""A query with a pattern does not read what it writes.

    rows that are dead letters    their origins are recorded before they are sent, so the source leaves out a stream
                                  that has only these
    all rows                      the write fails if the query's own source reads the stream

Dead letters are known by a mark on their column `dl.stream` (`envelope.ORIGIN`), which `route_dead_letters` makes: a
producer decides about the fields of entries, and not about the columns of a query. The source reports what it reads
(`source.stream_names`). Only the query's own source counts: what a query writes, others may read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.deadletter.envelope import PREFIX
from spark_streams.connector.deadletter.input_streams import Inputs, exclude_option
from spark_streams.connector.deadletter.post import fetch_recorded, origin_command
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.keys import MicroBatchName, batch_kind_key, is_product_key
from spark_streams.connector.sink.chunks import Chunk, Destination
from spark_streams.connector.source.stream_names import PatternRead, pattern_reads
from spark_streams.connector.wire.connection import Server

_Origin = tuple[str, str, str]  # the stream of dead letters, and the stream and the group that they come from
STREAM, GROUP = f"{PREFIX}stream", f"{PREFIX}group"  # columns


class Feedback:
    """What one task knows of the streams that it writes to. query: the micro-batch that it is a part of, None outside a
    query; letters: the rows are dead letters."""

    def __init__(self, query: MicroBatchName | None, letters: bool, to: Destination) -> None:
        self._query, self._letters, self._to = query, letters, to
        self._admitted: set[bytes] = set()
        self._reads: list[PatternRead] | None = None
        self._recorded: set[_Origin] = set()
        self._unrecorded: set[_Origin] = set()

    def seen(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, and remember the origins of dead letters."""
        for batch in batches:
            if self._letters:
                self._unrecorded |= self._origins(batch) - self._recorded
            yield batch

    def _origins(self, batch: pa.RecordBatch) -> set[_Origin]:
        column = self._to.stream_column
        to = pa.nulls(len(batch), pa.string()) if column is None else batch.column(column).cast(pa.string())
        to = to if self._to.stream is None else pc.fill_null(to, self._to.stream)
        names = {"to": to, "stream": batch.column(STREAM), "group": batch.column(GROUP)}
        kinds = pa.table(names).group_by([*names]).aggregate([]).to_pylist()
        # The name of a stream in which entries wait for a retry tells their origin.
        return {
            (one["to"], one["stream"], one["group"]) for one in kinds if one["to"] and not is_product_key(one["to"])
        }

    def is_new(self, chunk: Chunk) -> bool:
        """Whether `admit` must be called before the chunk is sent."""
        return bool(self._unrecorded) or (self._query is not None and not self._admitted.issuperset(chunk.stream_names))

    def admit(self, chunk: Chunk, server: Server) -> None:
        """Check the chunk's streams, then record origins. May be run again. Raises InvalidOptionError, ServerError."""
        new = {*chunk.stream_names} - self._admitted
        if self._query is not None:
            if self._reads is None:
                flat = server.execute("HGETALL", batch_kind_key(self._query.query))
                self._reads = pattern_reads(flat, self._query.query_run)
            names = sorted(name.decode("utf-8", "surrogateescape") for name in new)
            for read in self._reads:
                self._require_unread(server, read, list(filter(read.matches, names)))
        server.execute_all([origin_command(to, stream, group) for to, stream, group in sorted(self._unrecorded)])
        self._recorded |= self._unrecorded
        self._unrecorded = set()
        self._admitted |= new

    def _require_unread(self, server: Server, read: PatternRead, streams: Sequence[str]) -> None:
        """Raise InvalidOptionError if the query reads one of these streams, or will read it when it has an entry."""
        if not streams:
            return
        inputs = Inputs()
        found = inputs.filter_inputs(server, streams, warns=False)
        empty = inputs.without_entries(streams)
        left_out = {*fetch_recorded(server, empty), *(to for to, _, _ in self._unrecorded)}
        found += [stream for stream in empty if stream not in left_out]
        if found:
            raise InvalidOptionError(
                f"the query writes to stream {found[0]!r}, which its own source reads by streamsPattern "
                f"{read.pattern!r}: it would read its own rows without end. Nothing was written to the stream. Name "
                "another stream in the sink; or, if the query is not to read this one, set source option "
                f"streamsExcept={exclude_option(found[0])}"
            )
