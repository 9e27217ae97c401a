"""A struct of Spark in, bytes out: what a task does for `encode`."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql.types import StructType

from spark_streams.connector.schemas.framing import frame
from spark_streams.connector.schemas.payload_format import JSON, PROTOBUF
from spark_streams.connector.schemas.registry import Schema


@dataclass(frozen=True)
class Target:
    """As what values are written. It goes to the tasks, which ask no registry.

    schema: None for the descriptors of a file; message: for Protobuf; schema_id: None for values without framing;
    columns: the struct's type as JSON.
    """

    format: str
    schema: Schema | None
    descriptors: bytes = field(default=b"", repr=False)
    message: str = ""
    schema_id: int | None = None
    columns: str = ""


class Writer(Protocol):
    """A format with its schema. names: of the members that a struct may have, None: any."""

    indexes: tuple[int, ...]
    names: frozenset[str] | None

    def write(self, value: Any) -> bytes:
        """Return the bytes of a value. Raises one of UNFIT."""


class Encoder:
    """Encodes structs of one target."""

    def __init__(self, target: Target) -> None:
        """Raise errors of the format's package if the schema is not valid."""
        self._writer = _writer(target)
        self.names = self._writer.names
        self._head = b"" if target.schema_id is None else frame(target.schema_id, self._writer.indexes)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a struct, as Arrow gives it to Python. Raises one of UNFIT."""
        return self._head + self._writer.write(value)


def _writer(target: Target) -> Writer:
    """Return the writer of a format. Raises UnsupportedError if its package is missing."""
    if target.format == PROTOBUF:
        from spark_streams.connector.schemas.protobuf_writer import ProtobufWriter

        return ProtobufWriter(target.descriptors, target.schema, target.message)
    assert target.schema is not None
    if target.format == JSON:
        from spark_streams.connector.schemas.json_schema.writer import JsonWriter

        return JsonWriter(target.schema, StructType.fromJson(json.loads(target.columns)))
    from spark_streams.connector.schemas.avro_writer import AvroWriter

    return AvroWriter(target.schema)


@functools.cache
def encoder_of(target: Target) -> Encoder:
    """Return this process' encoder of a target."""
    return Encoder(target)
