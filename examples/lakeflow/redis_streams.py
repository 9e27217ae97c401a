"""Redis Streams as a Lakeflow community connector: each stream is a table to which entries are appended.

The framework keeps the positions, and calls `read_table` until it returns the position that it was given. There is no
consumer group: the framework does not report which records are committed. Where the format `rstream` itself can be
loaded, use that: it acknowledges, and it reads in parallel (docs/reference/platforms.md).

options: `url` of the server; `streams`, a Redis pattern of the streams that are tables (`*`).
Options of a table: `max_records_per_batch` (10,000); `fail_on_data_loss` (`true`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import redis
from databricks.labs.community_connector.interface.lakeflow_connect import LakeflowConnect
from pyspark.sql.types import MapType, StringType, StructField, StructType, TimestampType

SCHEMA = StructType([
    StructField("id", StringType(), nullable=False),
    StructField("timestamp", TimestampType(), nullable=False),
    StructField("fields", MapType(StringType(), StringType()), nullable=False),
])  # fmt: skip
PAGE = 1_000  # entries of a round trip
_OWN = "rstream:"  # keys of spark-streams itself


class RedisStreamsLakeflowConnect(LakeflowConnect):
    """A connector for one server, Redis 7.0 or newer, or Valkey 8 or newer."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        if "url" not in options:
            raise ValueError("option url is missing: set it to the server, such as rediss://user:password@host:6379/0")
        self._client = redis.Redis.from_url(options["url"], decode_responses=True, encoding_errors="replace")
        self._ends: dict[str, str] = {}  # of the streams when they were read first: so that a run ends

    def list_tables(self) -> list[str]:
        keys = self._client.scan_iter(match=self.options.get("streams", "*"), count=1_000, _type="stream")
        return sorted(key for key in keys if not key.startswith(_OWN))

    def get_table_schema(self, table_name: str, table_options: dict[str, str]) -> StructType:
        self._info(table_name)
        return SCHEMA

    def read_table_metadata(self, table_name: str, table_options: dict[str, str]) -> dict[str, Any]:
        self._info(table_name)
        return {"primary_keys": ["id"], "cursor_field": "id", "ingestion_type": "append"}

    def read_table(
        self, table_name: str, start_offset: dict[str, Any] | None, table_options: dict[str, str]
    ) -> tuple[Iterator[dict[str, Any]], dict[str, Any]]:
        """Return the next records, and the position after them: `id` of the last one, and `read`, how many entries
        were ever added up to there."""
        start = start_offset or {"id": "0-0", "read": 0}
        info = self._info(table_name)
        self._ends.setdefault(table_name, info["last-generated-id"])
        lost = info["entries-added"] - info["length"] - start["read"]
        if lost > 0 and table_options.get("fail_on_data_loss", "true") == "true" and start["id"] != "0-0":
            raise ValueError(
                f"at least {lost} entries of stream {table_name!r} after {start['id']} were trimmed or deleted before "
                "they were read. Keep the stream longer, or set fail_on_data_loss=false to go on without them"
            )
        records = self._records(table_name, start["id"], int(table_options.get("max_records_per_batch", "10000")))
        if not records:
            return iter(()), start
        read = max(start["read"], info["entries-added"] - info["length"]) + len(records)
        return iter(records), {"id": records[-1]["id"], "read": read}

    def _records(self, stream: str, after: str, most: int) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        while len(records) < most:
            count = min(PAGE, most - len(records))
            page = self._client.xrange(stream, f"({after}", self._ends[stream], count=count)
            records += [{"id": entry, "timestamp": _time_of(entry), "fields": fields} for entry, fields in page]
            if len(page) < count:
                break
            after = page[-1][0]
        return records

    def _info(self, stream: str) -> dict[str, Any]:
        try:
            info: dict[str, Any] = self._client.xinfo_stream(stream)
        except redis.ResponseError as error:
            raise ValueError(f"table {stream!r} does not exist: the server has no such stream ({error})") from None
        return info


def _time_of(entry: str) -> str:
    """Return the time of an entry ID, as ISO 8601."""
    return datetime.fromtimestamp(int(entry.partition("-")[0]) / 1000, UTC).isoformat()
