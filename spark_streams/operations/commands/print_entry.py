"""Print entries: their fields, decoded values and age, and the nearest entries if an entry does not exist."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from spark_streams.base.given_text import parse_assignment
from spark_streams.base.ids import MAX_ID, MIN_ID, U64_MAX, StreamId, age_ms
from spark_streams.connector.errors import StreamStateError
from spark_streams.operations.commands.shared import OptionSet, say

if TYPE_CHECKING:
    from spark_streams.connector.schemas.decode_process import FieldDecoders, Shown
    from spark_streams.connector.wire.connection import Server


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
    from spark_streams.connector.admin.dead_letters import fields_as_json
    from spark_streams.connector.deadletter.envelope import text

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


F = TypeVar("F", bound=Callable[..., object])
_OPTIONS = OptionSet(
    click.option(
        "--decode", "decoded", metavar="FIELD", multiple=True, help="Field to decode by --registry; repeatable."
    ),
    click.option(
        "--schema",
        "schemas",
        metavar="FIELD=FILE",
        multiple=True,
        help="Field to decode by the schema in FILE, without a registry; repeatable.",
    ),
    click.option("--framed", is_flag=True, help="With --schema: values begin with a registry's framing."),
    click.option(
        "--schema-format",
        type=click.Choice(("avro", "protobuf", "json")),
        default="avro",
        show_default=True,
        help="Format of the values. FILE of protobuf is a compiled FileDescriptorSet.",
    ),
    click.option("--message", help="With --schema: full name of the Protobuf message."),
    click.option("--registry", metavar="URL", envvar="RSTREAM_REGISTRY", help="Schema registry ($RSTREAM_REGISTRY)."),
    click.option(
        "--registry-username",
        metavar="TEXT",
        envvar="RSTREAM_REGISTRY_USERNAME",
        help="User name for the registry ($RSTREAM_REGISTRY_USERNAME).",
    ),
    click.option(
        "--registry-password-file",
        metavar="FILE",
        envvar="RSTREAM_REGISTRY_PASSWORD_FILE",
        help="File whose first line is its password ($RSTREAM_REGISTRY_PASSWORD_FILE).",
    ),
)


def decode_options(keeps_going: bool = False) -> Callable[[F], Callable[..., object]]:
    """Add the options. The command gets `decoders`, None if no field is decoded. keeps_going: as FieldDecoders."""

    def add(command: F) -> Callable[..., object]:
        @functools.wraps(command)
        def with_decoders(
            *args: object,
            decoded: tuple[str, ...],
            schemas: tuple[str, ...],
            framed: bool,
            schema_format: str,
            message: str | None,
            registry: str | None,
            registry_username: str | None,
            registry_password_file: str | None,
            **others: object,
        ) -> object:
            login = (registry_username or "", registry_password_file or "")
            files = [_file(text) for text in schemas]
            _check_decoding(decoded, schemas, registry, login)
            decoders = None
            if decoded or files:
                from spark_streams.connector.admin.streams import field_decoders

                decoders = field_decoders(
                    decoded, files, schema_format, registry or "", login, message or "", framed, keeps_going
                )
            return command(*args, decoders=decoders, **others)

        return _OPTIONS(with_decoders)

    return add


def note_absent_fields(decoders: FieldDecoders | None, present: Set[bytes]) -> None:
    """Print a note for each field that is to be decoded and that no entry has. present: names of all fields that are
    shown; none if there are no entries."""
    for name in sorted(decoders.fields - present if decoders is not None and present else ()):
        say(
            f"note: no entry that is shown has the field {name.decode()!r}, so it is not decoded. Check its name",
            err=True,
        )


def _file(text: str) -> tuple[str, str]:
    pair = parse_assignment(text)
    if pair is None or not pair[1]:
        raise click.UsageError(f"--schema {text!r} is not FIELD=FILE; write for example --schema payload=order.avsc")
    return pair


def _check_decoding(
    fields: tuple[str, ...], schemas: tuple[str, ...], registry: str | None, login: tuple[str, str]
) -> None:
    if fields and not registry:
        raise click.UsageError("--decode needs --registry URL; without a registry, use --schema FIELD=FILE")
    if any(login) and not all(login):
        raise click.UsageError("--registry-username and --registry-password-file belong together; set both")
    context = click.get_current_context()
    for name in ("registry", "framed", "message"):
        needs, given = ("--decode FIELD", fields) if name == "registry" else ("--schema FIELD=FILE", schemas)
        if not given and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} does nothing without {needs}; add it, or leave out --{name}")
