"""`rstream add`: append one entry, or JSON lines from standard input."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import click

from spark_streams.commands.shared import connect, json_option, print_json, say, url_option
from spark_streams.errors import SchemaError, ServerReplyError
from spark_streams.monitor.terminal.units import counted

if TYPE_CHECKING:
    from spark_streams.wire.connection.connection import Argument
    from spark_streams.wire.connection.server import Server

_CHUNK = 1_000  # entries that are sent together


@click.command(short_help="Append an entry, or JSON lines.")
@click.argument("stream")
@click.argument("fields", metavar="FIELD=VALUE... | -", nargs=-1, required=True)
@click.option("--id", "entry", default="*", help="The entry's id; the server's own choice where it is not given.")
@click.option("--maxlen", type=click.IntRange(1), help="Trim the stream to about so many entries (MAXLEN ~).")
@click.option("--no-create", is_flag=True, help="Only where the stream exists (NOMKSTREAM, Redis 6.2).")
@url_option
@json_option
def add(
    stream: str, fields: tuple[str, ...], entry: str, maxlen: int | None, no_create: bool, url: str, as_json: bool
) -> None:
    """Append an entry to STREAM; with `-`, one for each JSON object that a line of standard input holds.

    In JSON lines a string is written as it is, a number with its own digits, true and false as these words; null
    leaves the field out; lists and objects are written as JSON. Prints the id, or how many were added.

    \b
    Examples:
      rstream add orders customer=ann amount=12.50
      rstream add orders --id 1700000000000-0 customer=ann
      cat orders.jsonl | rstream add orders - --maxlen 1000000
    """
    head: list[Argument] = ["XADD", stream]
    head += ["NOMKSTREAM"] if no_create else []
    head += [] if maxlen is None else ["MAXLEN", "~", maxlen]
    if fields == ("-",):
        if entry != "*":
            raise click.UsageError("--id goes with one entry, not with -")
        entries: Iterable[Sequence[str]] = _lines(click.open_file("-", encoding="utf-8"))
    else:
        entries = [_pairs(fields)]
    from spark_streams.shards.settling import require_plain

    with connect(url, starts=True) as server:
        require_plain(server, stream)
        added, last = _send(server, [*head, entry], iter(entries))
    if as_json:
        print_json({"stream": stream, "added": added, "last": last})
    elif fields == ("-",):
        say(f"added {counted(added, 'entry', 'entries')}" + (f", the last one is {last}" if last else ""))
    else:
        say(last or "")


def _send(server: Server, head: Sequence[Argument], entries: Iterator[Sequence[str]]) -> tuple[int, str | None]:
    """How many were added, and the last id. Raises ServerError, SchemaError, which say how many were added before."""
    from spark_streams.wire.connection.connection import ReplyError

    added, last = 0, None
    while True:
        chunk: list[tuple[Argument, ...]] = []
        refused: SchemaError | None = None
        try:
            for fields in islice(entries, _CHUNK):
                chunk.append((*head, *fields))
        except SchemaError as error:
            refused = error
        for command, reply in zip(chunk, server.pipeline(chunk), strict=True):
            if isinstance(reply, ReplyError):
                said = server.error_of(reply, command[:2])
                raise type(said)(f"{said.message} ({added:,} entries were added before)")
            if reply is None:
                raise ServerReplyError(f"stream {head[1]!r} at {server.address} does not exist; leave out --no-create")
            added, last = added + 1, reply.decode()
        if refused is not None:
            raise SchemaError(f"{refused.message} ({added:,} entries were added before)")
        if len(chunk) < _CHUNK:
            return added, last


def _pairs(words: Sequence[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise click.UsageError(f"{word!r} is not FIELD=VALUE (or `-` alone, for JSON lines from standard input)")
        found += [name, value]
    return found


class _Number(str):
    """A number as it was written."""


def _lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """The fields of each line; empty lines are passed over. Raises SchemaError."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        except ValueError as error:
            raise SchemaError(f"line {number} is no JSON: {error}") from None
        if not isinstance(value, Mapping):
            raise SchemaError(f"line {number} is not a JSON object; write one with the entry's fields on each line")
        fields = [word for name, one in value.items() if one is not None for word in (name, _text(one))]
        if not fields:
            raise SchemaError(f"line {number} has no field; an entry needs one at least")
        yield fields


def _text(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _json(value)


def _json(value: object) -> str:
    """JSON in which numbers keep their digits."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
