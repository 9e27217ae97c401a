"""`rstream add`: append one entry, or JSON lines from standard input."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from spark_streams.base.given_text import parse_assignment
from spark_streams.base.printable import is_utf8, name_text, printable
from spark_streams.base.units import counted
from spark_streams.connector.errors import SchemaError, ServerReplyError, ServerUnreachableError
from spark_streams.operations.commands.exit_codes import REFUSED, found
from spark_streams.operations.commands.print_entry import no_such_entry, parse_id
from spark_streams.operations.commands.shared import address_of, json_option, print_json, print_table, say, url_option

if TYPE_CHECKING:
    from spark_streams.connector.wire.address import Address
    from spark_streams.connector.wire.connection import Argument, Server

_CHUNK = 1_000  # entries that are sent together
_SHOWN = 200  # characters of a name or a value that --check shows


@click.command(short_help="Append an entry, or JSON lines.")
@click.argument("stream")
@click.argument("fields", metavar="FIELD=VALUE... | -", nargs=-1)
@click.option("--id", "entry", default="*", help="ID of the entry; * lets the server generate it.")
@click.option("--again", metavar="ID", help="Begin with the fields of this entry; FIELD=VALUE replaces or adds one.")
@click.option("--unset", multiple=True, metavar="NAME", help="Leave out a field of the entry of --again; repeatable.")
@click.option("--check", is_flag=True, help="Add nothing: print the entry, and why it would be refused.")
@click.option("--maxlen", type=click.IntRange(1), help="Trim the stream to about this many entries (MAXLEN ~).")
@click.option("--no-create", is_flag=True, help="Fail if the stream does not exist (NOMKSTREAM).")
@url_option
@json_option
def add(
    stream: str,
    fields: tuple[str, ...],
    entry: str,
    again: str | None,
    unset: tuple[str, ...],
    check: bool,
    maxlen: int | None,
    no_create: bool,
    url: str,
    as_json: bool,
) -> None:
    """Append an entry to STREAM. With `-`, append one entry for each line of standard input; a line is a JSON object.

    Values of a JSON line: a string is written unchanged, and a number with its original digits. Other values are
    written as JSON. A field whose value is null is left out. The command prints the entry's ID; with `-` the number of
    added entries. It acts at once.

    In FIELD=VALUE, the first = ends the name. Within a name write \\= for an equals sign.

    With --again the other fields of that entry are added byte for byte. The entry itself stays.

    \b
    Examples:
      rstream add orders customer=ann amount=12.50
      rstream add old-orders --id 1700000000000-0 customer=ann     above the last ID of the stream
      rstream add orders --again 1795163834542-0 amount=12.50 --unset note --check
      cat orders.jsonl | rstream add orders - --maxlen 1000000
    """
    head: list[Argument] = ["XADD", stream]
    head += ["NOMKSTREAM"] if no_create else []
    head += [] if maxlen is None else ["MAXLEN", "~", maxlen]
    if not fields and again is None:
        raise click.UsageError("name a field: FIELD=VALUE, or a single - to read JSON lines")
    if unset and again is None:
        raise click.UsageError("--unset leaves out fields of the entry of --again; set --again ID")
    if fields == ("-",):
        if entry != "*":
            raise click.UsageError("--id sets the ID of a single entry, so it cannot be used with -; leave out --id")
        if check or again is not None:
            raise click.UsageError("--check and --again are for a single entry, so they cannot be used with -")
        entries: Iterable[Sequence[str]] = _lines(click.open_file("-", "rb"))
    else:
        entries = [_pairs(fields)]
    from spark_streams.connector.admin.streams import require_plain
    from spark_streams.connector.wire.connect import connect as connected

    address = address_of(url, starts=not check)
    starts_engine = address.will_start
    with connected(address) as server:
        require_plain(server, stream)
        if again is not None:
            entries = [_changed(server, stream, again, fields, unset)]
        if check:
            [words] = entries
            _print_check(server, stream, entry, no_create, words, as_json)
            return
        added, last = _send(server, [*head, entry], iter(entries))
    if starts_engine:
        say(_shared_engine(address), err=True)
    if as_json:
        print_json({"stream": stream, "added": added, "last": last})
    elif fields == ("-",):
        say(f"added {counted(added, 'entry', 'entries')}" + (f", the last ID is {last}" if last else ""))
    else:
        say(last or "")


def _changed(server: Server, stream: str, again: str, fields: Sequence[str], unset: Sequence[str]) -> list[str]:
    """Return the fields of an entry after these changes. Raises StreamStateError, OptionError, TransformError."""
    from spark_streams.connector.deadletter.transform import FieldChanges, StreamEntry
    from spark_streams.operations.transfer.transferred import TransferEntry

    wanted = parse_id(again)[0]
    rows = server.execute("XRANGE", stream, bytes(wanted), bytes(wanted))
    if not rows:
        raise no_such_entry(server, stream, again)
    texts = StreamEntry(str(wanted), TransferEntry(wanted, rows[0][1]).texts())
    return [word for pair in FieldChanges.parse(fields, unset).apply(texts, "entry") for word in pair]


def _print_check(server: Server, stream: str, entry: str, no_create: bool, words: Sequence[str], as_json: bool) -> None:
    """Print what would be added, and whether the server would refuse it."""
    from spark_streams.connector.wire.xinfo import read_stream_state

    [reply] = server.pipeline([("XINFO", "STREAM", stream)])
    state = read_stream_state(server, stream, reply)
    refused = []
    if no_create and not state.exists:
        refused.append(f"stream {stream!r} does not exist; leave out --no-create")
    if entry != "*" and parse_id(entry.removesuffix("-*"))[entry.endswith("-*")] <= state.last:
        refused.append(f"ID {entry} is not above the last ID of the stream, {state.last}; leave out --id")
    if refused:
        found(REFUSED)
    texts = [name_text(word[:_SHOWN]) + ("…" if len(word) > _SHOWN else "") for word in words]
    shown = list(zip(texts[::2], texts[1::2], strict=True))
    if as_json:
        rows = [{"field": name, "value": value} for name, value in shown]
        facts = {"stream": stream, "total": state.length, "last_id": str(state.last), "entry": rows}
        bounds = ["--no-create"] if state.exists else []
        print_json({"dry_run": True, "refused": refused, **facts, "bounds": bounds})
    else:
        print_table(("field", "value"), shown)
        for reason in refused:
            say(f"would be refused now: {reason}")
        say(f"nothing was added; without --check: an entry of {counted(len(shown), 'field')} to {stream}")


def _shared_engine(address: Address) -> str:
    """Return a note on the bundled engine that this command has started."""
    if address.directory is None:
        return (
            "note: started the bundled engine. All processes of this user on this machine share it. It keeps streams "
            "in memory, and stops when no client has used it for ten minutes (or ?idle= of its URL)"
        )
    return f"note: started the bundled engine of {address.directory}. All processes that name this directory share it"


def _send(server: Server, head: Sequence[Argument], entries: Iterator[Sequence[str]]) -> tuple[int, str | None]:
    """Return the number of added entries, and the last ID.

    Raises ServerError, SchemaError: the message holds the number of entries that were added before the error."""
    from spark_streams.connector.wire.connect import require_accepted
    from spark_streams.connector.wire.connection import ReplyError

    added, last = 0, None
    while True:
        chunk: list[tuple[Any, ...]] = []
        refused: SchemaError | None = None
        try:
            for fields in islice(entries, _CHUNK):
                chunk.append((*head, *fields))
        except SchemaError as error:
            refused = error
        try:
            replies = server.pipeline(chunk)
        except ServerUnreachableError:
            require_accepted(server.address, str(head[1]), [command[len(head) :] for command in chunk])
            raise
        for command, reply in zip(chunk, replies, strict=True):
            if isinstance(reply, ReplyError):
                server_error = server.error_of(reply, command[:2])
                raise type(server_error)(f"{server_error.message} ({added:,} entries were added before)")
            if reply is None:
                raise ServerReplyError(f"stream {head[1]!r} at {server.address} does not exist; leave out --no-create")
            added, last = added + 1, reply.decode()
        if refused is not None:
            raise SchemaError(f"{refused.message} ({added:,} entries were added before)")
        if len(chunk) < _CHUNK:
            return added, last


def _pairs(words: Sequence[str]) -> list[str]:
    fields: list[str] = []
    for word in words:
        pair = parse_assignment(word)
        if pair is None:
            raise click.UsageError(f"{word!r} is not FIELD=VALUE; write FIELD=VALUE, or a single - to read JSON lines")
        fields += pair
    return fields


class _JsonNumber(str):
    """A number with its original digits."""


def _lines(lines: Iterable[bytes]) -> Iterator[list[str]]:
    """Yield the fields of each line. Empty lines are skipped. Raises SchemaError, which names the line."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _fields(line)
            except SchemaError as error:
                raise SchemaError(f"line {number} {error.message}") from None


def _fields(line: bytes) -> list[str]:
    """Return the fields of a line: name, value, name, value … Raises SchemaError."""
    try:
        value = json.loads(
            line.decode("utf-8-sig"), parse_int=_JsonNumber, parse_float=_JsonNumber, parse_constant=_JsonNumber
        )
        if not isinstance(value, Mapping):
            raise SchemaError("is not a JSON object; write one JSON object on each line")
        fields = [word for name, content in value.items() if content is not None for word in (name, _text(content))]
    except UnicodeDecodeError as error:
        raise SchemaError(f"is not UTF-8 (byte {error.start + 1}); convert the input to UTF-8") from None
    except ValueError as error:
        raise SchemaError(f"is not JSON: {error}") from None
    except RecursionError:
        raise SchemaError("is nested too deeply to be read; write the inner value as a string") from None
    if not fields:
        raise SchemaError("has no field whose value is not null; an entry needs at least one")
    for name, content in zip(fields[::2], fields[1::2], strict=True):
        if not (is_utf8(name) and is_utf8(content)):
            raise SchemaError(
                f"has half of a surrogate pair in field '{printable(name):.100}', which is no character; write both "
                r"halves, such as \ud83d\ude00, or leave it out"
            )
    return fields


def _text(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _json(value)


def _json(value: object) -> str:
    """Return JSON in which numbers keep their digits."""
    if isinstance(value, _JsonNumber):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
