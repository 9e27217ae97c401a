"""Print entries: their fields and age, and the nearest entries if an entry does not exist."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from spark_streams.base.id_times import age_ms
from spark_streams.base.ids import MAX_ID, MIN_ID, U64_MAX, StreamId
from spark_streams.connector.errors import StreamStateError

if TYPE_CHECKING:
    from spark_streams.connector.schemas.apart.frames import Shown
    from spark_streams.connector.schemas.shown import FieldDecoders
    from spark_streams.connector.wire.connection.server import Server

_VALUE = 500  # characters of a name or a value that are shown
_FIELDS = 200  # fields of an entry that are shown, and again so many of its envelope
_ALIGNED = 24  # columns: values are aligned behind names up to this width


def parse_id(text: str) -> tuple[StreamId, StreamId]:
    """Return (first, last) entry ID of a text: an ID without a sequence is a whole millisecond. Raises UsageError."""
    try:
        return StreamId.parse(text), StreamId.parse(text, missing_seq=U64_MAX)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def age(entry: str) -> str:
    """Return how long ago an entry was added, or its ID if that is not a time."""
    from spark_streams.base.units import duration

    ms = age_ms(StreamId.parse(entry), time.time_ns() // 1_000_000)
    return entry if ms is None else f"{duration(ms)} ago"


def print_entry(
    title: str,
    entry: str,
    pairs: Iterable[tuple[bytes, bytes]],
    note: str = "",
    decoders: FieldDecoders | None = None,
) -> None:
    """Print an entry, one line per field. title: before the ID; note: after it; decoders: of values shown as JSON.

    Bytes that are not UTF-8 and terminal control characters are escaped. Long names and values are cut, and so are
    many fields: the envelope of a dead letter (dl.*), which comes last, is shown all the same."""
    from spark_streams.base.printable import printable
    from spark_streams.base.units import counted

    entry_age = age(entry)
    remarks = "   ".join(printable(remark) for remark in ("" if entry_age == entry else entry_age, note) if remark)
    head = click.style(f"{printable(title)} {entry}", bold=True)
    click.echo(head + (click.style(f"   {remarks}", dim=True) if remarks else ""))
    own, envelope = list[tuple[bytes, bytes]](), list[tuple[bytes, bytes]]()
    for pair in pairs:
        (envelope if pair[0].startswith(b"dl.") else own).append(pair)
    shown_pairs = [*own[:_FIELDS], *envelope[:_FIELDS]]
    left_out = len(own) + len(envelope) - len(shown_pairs)
    seen = [None] * len(shown_pairs) if decoders is None else decoders.page(shown_pairs)
    lines = [(*_line(*pair, one), pair[0].startswith(b"dl.")) for pair, one in zip(shown_pairs, seen, strict=True)]
    width = max((len(name) for name, _, _ in lines if len(name) <= _ALIGNED), default=0)
    for name, value, dim in lines:
        click.echo(f"  {click.style(name, dim=dim)}{' ' * (width - len(name))}  {value}".rstrip())
    if left_out:
        click.echo(f"  … and {counted(left_out, 'more field')} (--json has all of them)")


def _line(name: bytes, value: bytes, seen: Shown | None) -> tuple[str, str]:
    """Return (name, value) for a terminal. A value that cannot be decoded is raw, and its reason beside the name."""
    if seen is None:
        return _shown(name), _shown(value)
    return f"{_shown(name)} ({_printable((seen.reason or 'decoded').encode())})", _shown(
        value if seen.reason else seen.text
    )


def entry_as_json(entry: str, pairs: Iterable[tuple[bytes, bytes]], **more: object) -> dict[str, object]:
    """Return an entry as a JSON object, with fields as rstream dead export writes them. more: keys before the ID."""
    from spark_streams.connector.deadletter.envelope import text
    from spark_streams.connector.deadletter.listing import fields_as_json

    return {**more, "id": entry, "fields": fields_as_json([(text(name), text(value)) for name, value in pairs])}


def no_such_entry(server: Server, stream: str, entry: str) -> StreamStateError:
    """Return the error for an entry that does not exist; its message names the neighbours."""
    first, last = parse_id(entry)
    before = server.execute("XREVRANGE", stream, bytes(first), bytes(MIN_ID), "COUNT", 1)
    behind = server.execute("XRANGE", stream, bytes(last), bytes(MAX_ID), "COUNT", 1)
    near = [
        f"the entry {side} it is {neighbours[0][0].decode()}"
        for neighbours, side in ((before, "before"), (behind, "after"))
        if neighbours
    ]
    hint = " and ".join(near) or "the stream is empty"
    return StreamStateError(f"no entry {entry} in stream {stream!r} at {server.address}; {hint}")


def _shown(value: bytes) -> str:
    text = _printable(value[: 4 * _VALUE])
    if len(value) <= 4 * _VALUE and len(text) <= _VALUE:
        return text
    return f"{text[:_VALUE]} … ({len(value):,} bytes; --json has all of them)"


def _printable(raw: bytes) -> str:
    from spark_streams.base.printable import printable

    return printable(raw.decode("utf-8", "backslashreplace"))
