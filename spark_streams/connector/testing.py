"""Helpers for tests of code that uses streams: what a stream holds, and a query that has read everything.

    from spark_streams.connector.testing import assert_stream, run_until_drained

    def test_large_orders(rstream_engine, spark, tmp_path):
        run_until_drained(large_orders(spark, rstream_engine.url).option("checkpointLocation", str(tmp_path)))
        assert_stream(rstream_engine, "large-orders").has([{"customer": "ann", "amount": 250}])

Importing this module loads neither pyspark nor pyarrow. The engine's fixtures are those of spark_streams.pytest_plugin.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from spark_streams.engine import LocalEngine

    Fields = Mapping[str, object] | Iterable[tuple[str, object]]

__all__ = ["StreamAssertion", "assert_stream", "run_batches", "run_until_drained"]

_MOST_LINES = 60  # of the difference between two lists of entries


def assert_stream(server: LocalEngine | redis.Redis | str, stream: str) -> StreamAssertion:
    """Read a stream and return what can be asserted of it.

    Args:
        server: The engine of fixture `rstream_engine`, a client of redis-py, or a URL. Any server will do.
        stream: The stream's name. A stream that does not exist has no entries.

    Raises:
        redis.ResponseError: The key is not a stream.
    """
    with _client(server) as client:
        replies: Any = client.execute_command("XRANGE", stream, "-", "+", NEVER_DECODE=True)  # type: ignore[no-untyped-call]
    entries = [(_text(entry_id), _fields(words)) for entry_id, words in replies]
    return StreamAssertion(stream, tuple(entries))


@dataclass(frozen=True)
class StreamAssertion:
    """The entries of a stream: IDs and fields in their order, as text. Bytes that are not UTF-8 are written `\\xff`.

    Each method returns the object itself, so that assertions can be chained. Each raises AssertionError.
    """

    stream: str
    entries: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]

    def has(self, expected: Sequence[Fields], in_any_order: bool = False) -> StreamAssertion:
        """Assert that the stream has exactly these entries.

        Args:
            expected: The fields of each entry; pairs if a name occurs twice. Values are compared as text: 250 equals
                the field `250`.
            in_any_order: Compare the entries without their order. The order of fields never counts.
        """
        actual = [_line(fields) for _, fields in self.entries]
        wanted = [_line([(name, _text(value)) for name, value in _pairs(fields)]) for fields in expected]
        if in_any_order:
            actual, wanted = sorted(actual), sorted(wanted)
        if actual != wanted:
            lines = list(difflib.unified_diff(wanted, actual, "expected", f"stream {self.stream}", lineterm="", n=1))
            more = [f"… {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
            numbers = f"{len(actual)} entries, {len(wanted)} expected"
            raise AssertionError("\n".join([f"stream {self.stream!r}: {numbers}", *lines[:_MOST_LINES], *more]))
        return self

    def has_length(self, length: int) -> StreamAssertion:
        """Assert the number of entries."""
        assert len(self.entries) == length, f"stream {self.stream!r}: {len(self.entries)} entries, {length} expected"
        return self

    def is_empty(self) -> StreamAssertion:
        """Assert that the stream has no entries, or does not exist."""
        return self.has([])

    def has_ids(self, ids: Sequence[str]) -> StreamAssertion:
        """Assert the IDs of the entries, in their order."""
        actual = [entry_id for entry_id, _ in self.entries]
        assert actual == list(ids), f"stream {self.stream!r}: IDs {actual}, {list(ids)} expected"
        return self


def run_until_drained(query: DataStreamWriter | StreamingQuery) -> StreamingQuery:
    """Run a query until it has read every entry that its streams have now.

    Args:
        query: `df.writeStream…` with its options, which is started with `trigger(availableNow=True)`; the query has
            ended when this function returns. Or a running query with another trigger, which continues to run. If it is
            idle, this takes five seconds, or a second per stream if there are more than five: an idle query asks the
            server for released entries only then. With `streamsPattern` it takes at least two seconds.

    Returns:
        The query.

    Raises:
        StreamingQueryException: The query has failed.
    """
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_streams.connector.running.ending import Stop
    from spark_streams.connector.running.run import drain_running
    from spark_streams.connector.running.run import run_until_drained as run

    if not isinstance(query, DataStreamWriter):
        drain_running(query)
        return query
    writer = query.trigger(availableNow=True)
    ended, _ = run(writer.start(), writer.start, Stop())
    return ended


def run_batches(
    reader: DataStreamReader, write: Callable[[DataFrame], DataStreamWriter], sizes: Sequence[int | str]
) -> None:
    """Run a query in batches of exactly these sizes.

        run_batches(orders, lambda frame: frame.writeStream.…, [100, 50, "kill", 50])

    Args:
        reader: `spark.readStream.format("rstream")…` with its options, before `load()`. It must read no other source.
            The function sets its option `maxEntriesPerTrigger`.
        write: Returns the writer of the query, with a checkpointLocation. It is called for each batch.
        sizes: The number of entries of each batch. `"kill"` ends the query after the sink has the batch before it, and
            before the checkpoint has its commit. Then the query starts again from its checkpoint, and repeats the batch
            with the same entries. Each other number is a new batch.

    Raises:
        AssertionError: The streams have fewer entries than a batch should have.
        StreamingQueryException: The query has failed.
    """
    from spark_streams.connector.running.run import run_batches as run

    run(reader, write, sizes)


@contextlib.contextmanager
def _client(server: LocalEngine | redis.Redis | str) -> Iterator[redis.Redis]:
    """Yield a client that returns replies as the server sends them. The caller's own client does not change."""
    import redis

    with contextlib.ExitStack() as closing:
        if isinstance(server, redis.Redis):
            client = redis.Redis(connection_pool=server.connection_pool)
        else:
            client = closing.enter_context(redis.Redis.from_url(server if isinstance(server, str) else server.url))
        client.response_callbacks = {}  # type: ignore[assignment]  # theirs make a dict of fields, which drops repeated names
        yield client


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _fields(words: Any) -> tuple[tuple[str, str], ...]:
    """Return the fields of an entry. words: names and values in turn."""
    texts = [_text(word) for word in words]
    return tuple(zip(texts[0::2], texts[1::2], strict=True))


def _pairs(fields: Fields) -> Iterable[tuple[str, object]]:
    return fields.items() if isinstance(fields, Mapping) else fields


def _line(fields: Sequence[tuple[str, str]]) -> str:
    """Return an entry as a line of text, its fields in the order of their names."""
    return "{" + ", ".join(f"{name!r}: {value!r}" for name, value in sorted(fields)) + "}"
