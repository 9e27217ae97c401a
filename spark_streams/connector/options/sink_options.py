"""Options of the sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.options.access_options import AccessOptions, check_names_of_shards
from spark_streams.connector.options.option import Option
from spark_streams.connector.options.table import SINK


@dataclass(frozen=True, kw_only=True)
class SinkOptions(AccessOptions):
    """Options of `df.writeStream` and `df.write`. Durations are in milliseconds."""

    TABLE: ClassVar[tuple[Option, ...]] = SINK
    SIDE: ClassVar[str] = "sink"

    stream: str | None
    stream_column: str | None
    shards: int | None
    shard_by: str | None
    id_column: str | None
    delivery: str
    transaction: str | None
    transaction_batch: int | None
    transaction_query: str | None
    chunk_size: int
    rows_per_second: int | None
    maxlen: int | None
    min_id: str | None
    retention: int | None
    retention_bytes: int | None
    trim: str | None
    nulls: str
    wait_replicas: int | None

    def checked(self) -> Self:
        if self.stream_column is not None and self.stream_column == self.id_column:
            raise InvalidOptionError(
                f"options streamColumn and idColumn contradict each other: column {self.id_column!r} cannot hold the "
                "name of a stream and an entry's id"
            )
        if self.shards is not None:
            self._check_shards()
        return self

    def _check_shards(self) -> None:
        if self.stream is None:
            raise InvalidOptionError("option shards needs option stream: it names the shards")
        check_names_of_shards("stream", (self.stream,))
        if self.shard_by == self.id_column:
            raise InvalidOptionError(
                f"options shardBy and idColumn contradict each other: column {self.shard_by!r} cannot hold a key, "
                "which is a field, and an entry's id"
            )
