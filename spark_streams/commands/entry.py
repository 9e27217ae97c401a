"""Entries for people: what they hold, how old they are, and which is near where one is not there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from spark_streams.errors import StreamStateError
from spark_streams.model.ids import MAX_ID, MIN_ID, U64_MAX, StreamId

if TYPE_CHECKING:
    from spark_streams.wire.connection.server import Server

_NO_TIME = 100 * 366 * 86_400_000  # milliseconds: an id that far from now is a number
_VALUE = 500  # characters of a value that are shown
_ALIGNED = 24  # columns of the widest name that values stand beside


def parse_id(text: str) -> tuple[StreamId, StreamId]:
    """(first, last) of what an id stands for: one without a sequence is all of its millisecond. Raises UsageError."""
    try:
        return StreamId.parse(text), StreamId.parse(text, missing_seq=U64_MAX)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def age(entry: str) -> str:
    """How long ago an entry was added; its id itself where that is no time."""
    from spark_streams.monitor.terminal.units import duration

    ms = time.time() * 1000 - StreamId.parse(entry).ms
    return f"{duration(max(ms, 0))} ago" if abs(ms) < _NO_TIME else entry


def print_entry(what: str, entry: str, pairs: Iterable[tuple[bytes, bytes]], note: str = "") -> None:
    """An entry, a line for each field. what: it is; note: what else is known of it. Bytes that are no text, or that a
    terminal would obey, are escaped; of a long value the beginning is shown."""
    from spark_streams.model.printable import printable

    old = age(entry)
    more = "   ".join(printable(one) for one in ("" if old == entry else old, note) if one)
    head = click.style(f"{printable(what)} {entry}", bold=True)
    click.echo(head + (click.style(f"   {more}", dim=True) if more else ""))
    lines = [(_printable(name), _shown(value), name.startswith(b"dl.")) for name, value in pairs]
    width = max((len(name) for name, _, _ in lines if len(name) <= _ALIGNED), default=0)
    for name, value, dim in lines:
        click.echo(f"  {click.style(name, dim=dim)}{' ' * (width - len(name))}  {value}".rstrip())


def entry_as_json(entry: str, pairs: Iterable[tuple[bytes, bytes]], **more: object) -> dict[str, object]:
    """An entry for programs, as rstream dead export writes fields. more: what else is known, before its id."""
    from spark_streams.deadletter.envelope import text
    from spark_streams.deadletter.inspect.export import fields_as_json

    return {**more, "id": entry, "fields": fields_as_json([(text(name), text(value)) for name, value in pairs])}


def no_such_entry(server: Server, stream: str, entry: str) -> StreamStateError:
    """The error for an entry that is not there, with those that are next to it."""
    first, last = parse_id(entry)
    before = server.execute("XREVRANGE", stream, bytes(first), bytes(MIN_ID), "COUNT", 1)
    behind = server.execute("XRANGE", stream, bytes(last), bytes(MAX_ID), "COUNT", 1)
    near = [
        f"{found[0][0].decode()} stands {where} it"
        for found, where in ((before, "before"), (behind, "behind"))
        if found
    ]
    hint = " and ".join(near) or "the stream is empty"
    return StreamStateError(f"no entry {entry} in stream {stream!r} at {server.address}; {hint}")


def _shown(value: bytes) -> str:
    text = _printable(value[: 4 * _VALUE])
    if len(value) <= 4 * _VALUE and len(text) <= _VALUE:
        return text
    return f"{text[:_VALUE]} … ({len(value):,} bytes; --json has all of them)"


def _printable(raw: bytes) -> str:
    from spark_streams.model.printable import printable
    from spark_streams.monitor.groups import shown

    return printable(shown(raw))
