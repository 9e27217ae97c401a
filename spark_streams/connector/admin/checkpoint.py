"""What a query's checkpoint says of its batches, and what its sink's ledger, its tables and an archive have of them.

    metadata      {"id": …}, the query
    offsets/7     v1, Spark's line, and a line for each source: the offset at which batch 7 ends
    commits/7     exists: batch 7 is complete

Spark keeps the last batches (spark.sql.streaming.minBatchesToRetain).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_streams.base.ids import MIN_ID
from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import InvalidOptionError, OffsetError
from spark_streams.connector.keys import ICEBERG_BATCH, ICEBERG_QUERY, batch_kind_key, partition_name, record_key
from spark_streams.connector.sink.ledger import QueryRecord
from spark_streams.connector.source.archive.files import KEYS, ArchiveTable, retrying
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.connection import ReplyError, Server

_LARGEST = 64 << 20  # bytes of a file: 10,000 streams have some megabytes


@dataclass(frozen=True)
class Batch:
    number: int
    at: int | None  # when it was planned, Unix ms
    offsets: Sequence[Offset] | None  # of the sources of this product; None: not readable
    is_committed: bool


@dataclass(frozen=True)
class Checkpoint:
    query: str  # its ID, "" if the folder does not name it
    batches: Sequence[Batch]  # in order


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint folder of this machine. Raises InvalidOptionError."""
    try:
        numbers = {parse_number(file.name): file for file in (folder / "offsets").iterdir()}
        commits = {file.name for file in (folder / "commits").glob("*")}
        metadata = folder / "metadata"
        named = json_object(_text_of(metadata)) if metadata.exists() else {}
        batches = [
            _batch(number, _text_of(file), file.name in commits)
            for number, file in sorted((n, file) for n, file in numbers.items() if n is not None)
        ]
    except OSError as error:
        raise InvalidOptionError(
            f"checkpoint {str(folder)!r} cannot be read: {error.strerror}. Name the folder of option "
            "checkpointLocation, which has the folder offsets; copy it to this machine first if it is elsewhere"
        ) from error
    return Checkpoint(str(named.get("id", "")), batches)


def streams_read(folder: Path) -> list[str]:
    """Return the streams of which a query has read entries: none if the folder is none of this machine. Raises as
    `read_checkpoint` does."""
    batches = read_checkpoint(folder).batches if (folder / "offsets").is_dir() else []
    offsets = batches[-1].offsets or () if batches else ()
    return [stream for offset in offsets for stream, at in offset.positions.items() if at > MIN_ID]


def _text_of(file: Path) -> str:
    """Return the text of a file of a checkpoint. Raises OSError for what is no regular file, which might never end."""
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EINVAL, f"{file.name} is not a regular file")
        content = opened.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(errno.EFBIG, f"{file.name} has more than {_LARGEST >> 20} MiB")
    return content.decode("utf-8", "replace")


def _batch(number: int, text: str, is_committed: bool) -> Batch:
    _, _, body = text.partition("\n")
    parsed = [json_object(line) for line in body.split("\n")]
    times = [value for one in parsed if isinstance(value := one.get("batchTimestampMs"), int)]
    try:
        offsets = [Offset.from_json(one) for one in parsed if {"format", "group", "streams"} <= one.keys()]
    except OffsetError:
        offsets = []
    return Batch(number, times[0] if times else None, offsets or None, is_committed)


def json_object(line: str) -> Mapping[str, object]:
    """Return a JSON object of Spark's or Delta's log; an empty one for another line."""
    with contextlib.suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict):
            return value
    return {}


def fetch_record(server: Server, query: str) -> QueryRecord | None:
    """Return what the sink's ledger has of a query; None: it has another sink, or the user may not read the ledger."""
    [reply] = server.pipeline([("HGETALL", record_key(query))])
    return None if isinstance(reply, ReplyError) or not reply or not query else QueryRecord.read(reply)


def keys_of_query(query: str) -> list[bytes]:
    """Return the keys that only have Spark's ID of the query in their name."""
    return [record_key(query).encode(), batch_kind_key(query).encode()]
