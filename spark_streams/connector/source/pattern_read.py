"""What a query with a pattern reads, as the tasks of its source report it to its sink (sink.send.feedback).

The report is a field of `keys.batch_kind_key`, which no producer may write. Each task of the source writes it before
its first row, so the sink of the query reads it before it writes a row of these.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from spark_streams.base.pattern import NamesAndPatterns, matches
from spark_streams.connector.deadletter.input_streams import own_dead_letter_streams
from spark_streams.connector.keys import batch_kind_key, is_product_key
from spark_streams.connector.micro_batch import MicroBatchName
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.wire.connection.server import Server

_FIELD = b"reads:"
_MILLISECONDS = 7 * 86_400_000


@dataclass(frozen=True)
class PatternRead:
    """pattern: of the streams; excluded: words of streamsExcept; own: the query's own dead-letter streams; run: Spark's
    ID of the query's run, because a later run may have other options."""

    pattern: str
    excluded: tuple[str, ...]
    own: tuple[str, ...]
    run: str

    def matches(self, stream: str) -> bool:
        """Whether the pattern selects this stream, and no option excludes it."""
        if is_product_key(stream) or stream in self.own or not matches(self.pattern, stream):
            return False
        return not NamesAndPatterns.divide(self.excluded, {stream}).selects(stream)

    def field(self, group: str, consumer: str) -> tuple[bytes, bytes]:
        """Return field and value of the report of a source. A query may have several sources."""
        name = json.dumps([group, consumer]).encode()
        return _FIELD + name, json.dumps(asdict(self)).encode()


def pattern_reads(flat: Sequence[bytes], run: str) -> list[PatternRead]:
    """Return the reports of a query's run, from the reply to HGETALL. run: empty if Spark does not tell it."""
    found = [json.loads(value) for name, value in zip(flat[0::2], flat[1::2], strict=True) if name.startswith(_FIELD)]
    reads = [PatternRead(one["pattern"], tuple(one["excluded"]), tuple(one["own"]), one["run"]) for one in found]
    return [read for read in reads if run in ("", read.run)]


def report_pattern(server: Server, options: SourceOptions, batch: MicroBatchName | None) -> None:
    """Report to the sink which streams the query reads. batch: of the task, None outside a query. Raises
    ServerError."""
    if batch is not None:
        own = own_dead_letter_streams(options.dead_letter_stream)
        read = PatternRead(options.pattern, options.streams_except, tuple(own), batch.query_run)
        key = batch_kind_key(batch.query)
        reported = ("HSET", key, *read.field(options.group, options.consumer))
        server.execute_all([reported, ("PEXPIRE", key, _MILLISECONDS)])
