"""Where a row goes, and under which id: to the one stream of an option, or as the columns say that options name.

No column is asked for that because of its name: the source gives `_stream` and `_id` to whoever declares them, and a
row that went where they say would go back to where it was read. Pure but for `make_ready`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from spark_streams.errors import InvalidOptionError, SchemaError
from spark_streams.options.sink_options import SinkOptions
from spark_streams.shards.settling import require_plain, settle
from spark_streams.sink.encode.fields import FIELDS, WAYS_TO_USE
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Destination:
    """stream: of rows that name none; stream_column, id_column: the columns of strings that hold a row's stream and its
    entry's id, and are not among its fields; shards, shard_by: how many streams `stream` is, and the column, a field
    like others, by which a row has one of them. None: not given."""

    stream: str | None = None
    stream_column: str | None = None
    id_column: str | None = None
    shards: int | None = None
    shard_by: str | None = None

    @classmethod
    def of(cls, options: SinkOptions) -> Self:
        """What a sink's options say."""
        return cls(options.stream, options.stream_column, options.id_column, options.shards, options.shard_by)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that are no fields."""
        return tuple(name for name in (self.stream_column, self.id_column) if name is not None)

    @property
    def shown(self) -> str:
        """The streams, for messages."""
        if self.shards is not None:
            return f"stream {self.stream!r} in {self.shards} shards"
        named = [] if self.stream_column is None else [f"the streams that column {self.stream_column!r} names"]
        return ", else ".join([*named, *([] if self.stream is None else [f"stream {self.stream!r}"])]) or "it"

    def make_ready(self, server: Server) -> None:
        """On the driver, before tasks write: the stream is in its shards, or in none. Raises ShardsError, and what
        making them raises."""
        if self.stream is not None and self.shards is not None:
            settle(server, self.stream, self.shards, self.shard_by)
        elif self.stream is not None:
            require_plain(server, self.stream)

    def check(self, schema: pa.Schema) -> None:
        """Raises InvalidOptionError where nothing says where rows go, or they lack a column that is named, SchemaError
        where one holds no strings."""
        if self.stream is None and self.stream_column is None:
            raise InvalidOptionError(_nowhere(schema))
        for option, name in (("streamColumn", self.stream_column), ("idColumn", self.id_column)):
            if name is not None:
                _check_text(option, name, _only_column(option, name, schema))
        if self.shard_by is not None:
            _check_key(self.shard_by, _only_column("shardBy", self.shard_by, schema))


def _nowhere(schema: pa.Schema) -> str:
    missing = "neither option stream nor streamColumn says where rows go: "
    if "_stream" in schema.names:
        return f"{missing}name a stream in option stream and drop column '_stream', or say {WAYS_TO_USE['_stream']}"
    return f"{missing}name a stream in option stream, or in streamColumn a column that says it for each row"


def _only_column(option: str, name: str, schema: pa.Schema) -> pa.DataType:
    """The type of the one column of this name. Raises InvalidOptionError, SchemaError."""
    found = schema.get_all_field_indices(name)
    if not found:
        near = difflib.get_close_matches(name.lower(), {one.lower(): one for one in schema.names}, n=1)
        hint = next((f"did you mean {one!r}? " for one in schema.names if near == [one.lower()]), "")
        raise InvalidOptionError(
            f"sink option {option}={name!r} names a column that the rows do not have; {hint}they have "
            f"{', '.join(schema.names)}"
        )
    if len(found) > 1:
        raise SchemaError(f"the rows have {len(found)} columns {name!r}, which option {option} names; rename one")
    return schema.field(found[0]).type


def _check_key(name: str, kind: pa.DataType) -> None:
    if name == FIELDS and pa.types.is_map(kind):
        raise SchemaError(
            f"column {name!r}, which option shardBy names, holds many fields: take the key out of it, into a column "
            "of its own"
        )


def _check_text(option: str, name: str, kind: pa.DataType) -> None:
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise SchemaError(f"column {name!r}, which option {option} names, must be a string, not {kind}; cast it")
