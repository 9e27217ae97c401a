"""Stream and ID of each row: from option `stream`, or from the columns that options name.

The sink never uses a column because of its name. The source provides columns `_stream` and `_id`: a sink that followed
them would write each row to the stream that it was read from. Pure except for `make_ready`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from spark_streams.connector.errors import InvalidOptionError, SchemaError
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.shards.settling import ensure_shards, require_plain
from spark_streams.connector.sink.encode.fields import FIELDS, USES_OF_COLUMN
from spark_streams.connector.wire.connection.server import Server


@dataclass(frozen=True)
class Destination:
    """stream: of rows that name none; stream_column, id_column: string columns with the stream and the ID of a row,
    not written as fields; shards: number of streams that make up `stream`; shard_by: the column whose value decides
    about a row's shard, also written as a field. None: not set."""

    stream: str | None = None
    stream_column: str | None = None
    id_column: str | None = None
    shards: int | None = None
    shard_by: str | None = None

    @classmethod
    def from_options(cls, options: SinkOptions) -> Self:
        """Return the destination that a sink's options name."""
        return cls(options.stream, options.stream_column, options.id_column, options.shards, options.shard_by)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are not fields."""
        return tuple(name for name in (self.stream_column, self.id_column) if name is not None)

    @property
    def shown(self) -> str:
        """The streams' names in messages."""
        if self.shards is not None:
            return f"stream {self.stream!r} in {self.shards} shards"
        named = [] if self.stream_column is None else [f"the streams that column {self.stream_column!r} names"]
        return ", else ".join([*named, *([] if self.stream is None else [f"stream {self.stream!r}"])]) or "it"

    def make_ready(self, server: Server) -> None:
        """Create the shards, or require that the stream has none; on the driver, before tasks write. Raises ShardsError
        and the errors of `ensure_shards`."""
        if self.stream is not None and self.shards is not None:
            ensure_shards(server, self.stream, self.shards, self.shard_by)
        elif self.stream is not None:
            require_plain(server, self.stream)

    def check(self, schema: pa.Schema) -> None:
        """Raises InvalidOptionError if no option names a stream or a named column is missing, SchemaError if the column
        does not hold strings."""
        if self.stream is None and self.stream_column is None:
            raise InvalidOptionError(_no_destination(schema))
        for option, name in (("streamColumn", self.stream_column), ("idColumn", self.id_column)):
            if name is not None:
                _check_text(option, name, _only_column(option, name, schema))
        if self.shard_by is not None:
            _check_key(self.shard_by, _only_column("shardBy", self.shard_by, schema))


def _no_destination(schema: pa.Schema) -> str:
    missing = "neither option stream nor streamColumn is set, so rows have no stream. "
    if "_stream" in schema.names:
        return f"{missing}Set option stream and drop column '_stream', or set {USES_OF_COLUMN['_stream']}"
    return f"{missing}Set option stream to a stream, or streamColumn to a column with the stream of each row"


def _only_column(option: str, name: str, schema: pa.Schema) -> pa.DataType:
    """Return the type of the column with this name. Raises InvalidOptionError, SchemaError."""
    indices = schema.get_all_field_indices(name)
    if not indices:
        near = difflib.get_close_matches(name.lower(), {column.lower(): column for column in schema.names}, n=1)
        hint = next((f" Did you mean {column!r}?" for column in schema.names if near == [column.lower()]), "")
        raise InvalidOptionError(
            f"sink option {option}={name!r} names a column that the rows do not have.{hint} They have "
            f"{', '.join(schema.names)} (rstream help options#{option})"
        )
    if len(indices) > 1:
        raise SchemaError(f"the rows have {len(indices)} columns {name!r}, which option {option} names. Rename one")
    return schema.field(indices[0]).type


def _check_key(name: str, kind: pa.DataType) -> None:
    if name == FIELDS and pa.types.is_map(kind):
        raise SchemaError(
            f"column {name!r}, which option shardBy names, holds several fields. Copy the key into a column of its own"
        )


def _check_text(option: str, name: str, kind: pa.DataType) -> None:
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise SchemaError(f"column {name!r}, which option {option} names, must be a string, not {kind}. Cast it")
