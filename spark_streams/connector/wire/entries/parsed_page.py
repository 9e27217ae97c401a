"""The exact way to read entries: hiredis parses each reply. Correct for every reply, and slower."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import hiredis
import numpy as np
import pyarrow as pa

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.entries.entry_page import EntryPage, UInt64s
from spark_streams.connector.wire.entries.lines import Index
from spark_streams.connector.wire.replies.replies import each_reply

ParsedEntry = Sequence[bytes | Sequence[bytes] | None] | None


class ExactPage(EntryPage):
    """Entries parsed one by one: [id, [name, value, …]], or [id, None] for a deleted one."""

    def __init__(self, entries: Sequence[ParsedEntry]) -> None:
        self._ids: list[bytes] = []
        self._fields: list[Sequence[bytes]] = []
        self._dicts: list[dict[bytes, bytes]] | None = None
        self._rows_before = [0]  # per entry
        self.deleted = 0
        self.last_id = None
        last = None
        for entry in entries:
            if entry is not None:  # XAUTOCLAIM before Redis 7 returns nil for a deleted entry
                last, fields = entry
                if fields is not None:
                    self._ids.append(last)  # type: ignore[arg-type]  # the pair's first half is the id
                    self._fields.append(fields)  # type: ignore[arg-type]  # and its second half the field list
            self._rows_before.append(len(self._ids))
        self.count = len(self._ids)
        self.deleted = len(entries) - self.count
        if last is not None:
            assert isinstance(last, bytes)
            self.last_id = StreamId.parse(last)

    def rows_of(self, counts: Sequence[int]) -> Index:
        rows: Index = np.diff(np.array(self._rows_before)[np.cumsum([0, *counts])])
        return rows

    def ids(self) -> pa.Array:
        return pa.array(self._ids, pa.binary())

    def milliseconds(self) -> UInt64s:
        return np.array([StreamId.parse(entry).ms for entry in self._ids], np.uint64)

    @cached_property
    def _shape(self) -> Sequence[bytes]:
        """The names of every entry, in order; empty if they differ."""
        names = self._fields[0][0::2] if self._fields else []
        return names if all(fields[0::2] == names for fields in self._fields) else []

    def field(self, name: bytes) -> pa.Array:
        if name in self._shape:
            index = 2 * (len(self._shape) - self._shape[::-1].index(name)) - 1  # the last field of that name
            return pa.array([fields[index] for fields in self._fields], pa.binary())
        if self._dicts is None:
            self._dicts = [dict(zip(fields[0::2], fields[1::2], strict=True)) for fields in self._fields]
        return pa.array([fields.get(name) for fields in self._dicts], pa.binary())

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum([len(fields) // 2 for fields in self._fields], out=offsets[1:])
        names = [name for fields in self._fields for name in fields[0::2]]
        values = [value for fields in self._fields for value in fields[1::2]]
        return pa.array(offsets), pa.array(names, pa.binary()), pa.array(values, pa.binary())


def parse_entries(data: memoryview | bytes, count: int) -> list[list[ParsedEntry]]:
    """Return the entries of `count` replies in a row. Raises ServerReplyError for any other reply."""
    replies = each_reply(data)
    entries: list[list[ParsedEntry]] = []
    for place in range(count):
        try:
            parsed = next(replies, False)
        except hiredis.ProtocolError as error:
            parsed = error
        if not isinstance(parsed, list):
            reply_number = "" if count == 1 else f" (reply {place + 1} of {count})"
            text = "nothing" if parsed is False else str(parsed)[:200]
            code = parsed.code if isinstance(parsed, ReplyError) else ""
            raise ServerReplyError(f"expected entries, the server answered with: {text}{reply_number}", code)
        entries.append(parsed)
    return entries
