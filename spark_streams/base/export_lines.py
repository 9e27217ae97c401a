"""Lines of a file of `rstream export`: entries, and with --with-groups what a stream and its groups were, before them.

    {"export": {"version": 1, "stream": "orders", "time": 1795163900000, "last": "…", "added": 3, "deleted": "0-0"}}
    {"group": "etl", "position": "1795163834542-0", "read": 2}            read: null if the server does not know
    {"group": "etl", "consumer": "ann", "idle": 600000, "inactive": null}
    {"group": "etl", "pending": "1795163834542-0", "consumer": "ann", "idle": 600000, "deliveries": 1}
    {"id": "1795163834542-0", "fields": {"customer": "ann", "photo": {"base64": "/9j/"}}}

Times are in milliseconds: `time` since 1970, by the server's clock; `idle` and `inactive` at that time. A pending entry
that a consumer has released (XNACK) has the consumer null and the idle time null. If a field name is not UTF-8 or
occurs twice, `fields` is a list of [name, value]. Pure.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spark_streams.base.ids import StreamId
from spark_streams.base.printable import is_utf8

VERSION = 1  # of the lines before the entries


class JsonObject(list[tuple[str, Any]]):
    """A JSON object as its pairs, so that no name is lost if it occurs twice."""


@dataclass
class ExportedGroup:
    """A group of the stream. Times are Unix milliseconds."""

    position: StreamId
    read: int | None
    # When each was last seen, and when it last got an entry (-1: never).
    consumers: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    # By ID: the consumer (None: released), the time of the delivery, the number of deliveries.
    pending: dict[StreamId, tuple[bytes | None, int, int]] = field(default_factory=dict)


@dataclass
class ExportedStream:
    """The stream of an export with its groups."""

    name: bytes
    time: int  # of the export, Unix milliseconds
    last: StreamId  # highest ID generated
    added: int  # entries ever
    deleted: StreamId  # highest ID deleted
    groups: dict[bytes, ExportedGroup] = field(default_factory=dict)
    entries: list[tuple[StreamId, list[bytes]]] = field(default_factory=list)


def read_export(lines: Iterable[bytes]) -> ExportedStream:
    """Return the stream of an export with groups. Raises ValueError, which names the line."""
    stream: ExportedStream | None = None
    for number, line in enumerate(lines, 1):
        try:
            value = parse_json(line) if line.strip() else None
            if value is None:
                continue
            if stream is None:
                stream = _stream(value)
            elif member(value, "group") is not None:
                _add_to_group(stream, value)
            else:
                entry_id, fields = entry_in(value)
                parsed = StreamId.parse(entry_id)
                above = stream.entries[-1][0] if stream.entries else StreamId(0, 0)
                if not above < parsed <= stream.last:
                    raise ValueError(f"the ID {entry_id} must be above {above} and at most {stream.last}")
                stream.entries.append((parsed, fields))
        except ValueError as error:
            raise ValueError(f"line {number:,}: {error}") from None
    if stream is None:
        raise ValueError("the file is empty")
    if stream.added < len(stream.entries) or stream.deleted > stream.last:
        raise ValueError('line 1: "added" must be at least the number of entries, and "deleted" at most "last"')
    return stream


def parse_json(line: bytes) -> object:
    """Return the value of a line, its objects as JsonObject. Raises ValueError."""
    try:
        value: object = json.loads(line.decode(), object_pairs_hook=JsonObject)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} in column {error.colno}") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    return value


def entry_in(value: object) -> tuple[str, list[bytes]]:
    """Return the ID of an entry, and name, value, name, value …. Raises ValueError."""
    entry_id, fields = member(value, "id"), member(value, "fields")
    if not isinstance(entry_id, str) or not isinstance(fields, list):
        form = 'an entry is a JSON object with a text "id" and with "fields"'
        raise ValueError(f"{form}; objects without IDs are added by rstream add STREAM -")
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in fields):
        raise ValueError('"fields" must be an object, or a list of [name, value]')
    if not fields:
        raise ValueError("the entry has no field")
    return entry_id, [_bytes(word) for pair in fields for word in pair]


def member(value: object, name: str) -> object:
    """Return a member of a JSON object; None if it has none. Raises ValueError."""
    members = [member for key, member in value if key == name] if isinstance(value, JsonObject) else []
    if len(members) > 1:
        raise ValueError(f'"{name}" occurs twice')
    return members[0] if members else None


def _stream(value: object) -> ExportedStream:
    head = member(value, "export")
    if not isinstance(head, JsonObject):
        raise ValueError(
            "the file is no export with groups, because its first line is another one. Write such a file with rstream "
            "export STREAM FILE --with-groups"
        )
    version = _number(head, "version")
    if version != VERSION:
        raise ValueError(
            f"the file has version {version}, and this spark-streams reads version {VERSION}. Import the file with the "
            "release that wrote it"
        )
    deleted, last = _id(head, "deleted"), _id(head, "last")
    return ExportedStream(_bytes(member(head, "stream")), _number(head, "time"), last, _number(head, "added"), deleted)


def _add_to_group(stream: ExportedStream, value: object) -> None:
    name = _bytes(member(value, "group"))
    if member(value, "position") is not None:
        read = None if member(value, "read") is None else _number(value, "read")
        if name in stream.groups:
            raise ValueError("the group is in the file twice")
        stream.groups[name] = ExportedGroup(_id(value, "position"), read)
        return
    if name not in stream.groups:
        raise ValueError("the position of the group is missing: it must be on an earlier line")
    group, owner = stream.groups[name], member(value, "consumer")
    consumer = None if owner is None else _bytes(owner)
    time = 0 if consumer is None else max(0, stream.time - _number(value, "idle"))
    if member(value, "pending") is not None:
        entry_id = _id(value, "pending")
        if entry_id in group.pending or (consumer is not None and consumer not in group.consumers):
            raise ValueError("the entry is pending twice, or its consumer is not on an earlier line")
        group.pending[entry_id] = (consumer, time, _number(value, "deliveries"))
    elif consumer is None or consumer in group.consumers:
        raise ValueError("the line names no consumer, or one that an earlier line has")
    else:
        active = -1 if member(value, "inactive") is None else max(0, stream.time - _number(value, "inactive"))
        group.consumers[consumer] = (time, active)


def _number(value: object, name: str) -> int:
    number = member(value, name)
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ValueError(f'"{name}" must be a whole number from 0 to 2^63 - 1')
    return number


def _id(value: object, name: str) -> StreamId:
    text = member(value, name)
    if not isinstance(text, str):
        raise ValueError(f'"{name}" must be an entry ID, as 1700000000000-0')
    return StreamId.parse(text)


def _bytes(value: object) -> bytes:
    """Return the bytes of a text, or of {"base64": …}. Raises ValueError."""
    if isinstance(value, str):
        if not is_utf8(value):
            raise ValueError("a name or value has half of a surrogate pair, which is not a character")
        return value.encode()
    if isinstance(value, JsonObject) and [name for name, _ in value] == ["base64"] and isinstance(value[0][1], str):
        return base64.b64decode(value[0][1], validate=True)
    raise ValueError('a name or value must be a text, or {"base64": "…"} with bytes')
