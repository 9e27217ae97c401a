"""Options of commands that show decoded values: which fields, by which registry or schema."""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from spark_streams.base.given_text import parse_assignment
from spark_streams.operations.commands.shared import say

if TYPE_CHECKING:
    from spark_streams.connector.schemas.decode_process import FieldDecoders

F = TypeVar("F", bound=Callable[..., object])
_OPTIONS = [
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
]


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
            _check(decoded, schemas, registry, login)
            decoders = None
            if decoded or files:
                from spark_streams.connector.admin.streams import field_decoders

                decoders = field_decoders(
                    decoded, files, schema_format, registry or "", login, message or "", framed, keeps_going
                )
            return command(*args, decoders=decoders, **others)

        decorated: Callable[..., object] = with_decoders
        for option in reversed(_OPTIONS):
            decorated = option(decorated)
        return decorated

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


def _check(fields: tuple[str, ...], schemas: tuple[str, ...], registry: str | None, login: tuple[str, str]) -> None:
    if fields and not registry:
        raise click.UsageError("--decode needs --registry URL; without a registry, use --schema FIELD=FILE")
    if any(login) and not all(login):
        raise click.UsageError("--registry-username and --registry-password-file belong together; set both")
    context = click.get_current_context()
    typed = [
        name
        for name in ("registry", "framed", "message")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    for name in typed:
        needs, given = ("--decode FIELD", fields) if name == "registry" else ("--schema FIELD=FILE", schemas)
        if not given:
            raise click.UsageError(f"--{name} does nothing without {needs}; add it, or leave out --{name}")


def _decoders(
    fields: tuple[str, ...],
    files: list[tuple[str, str]],
    format: str,
    registry: str,
    login: tuple[str, str],
    message: str,
    framed: bool,
    keeps_going: bool,
) -> FieldDecoders:
    from spark_streams.connector.schemas.decode_process import FieldDecoders
    from spark_streams.connector.schemas.payload_format import NO_LOGIN, form_of, login_of, valid_schema

    access = login_of(login) if any(login) else NO_LOGIN
    forms = {name.encode(): form_of(format, registry, "", "", access, None) for name in fields}
    forms |= {name.encode(): form_of(format, "", file, message, NO_LOGIN, framed) for name, file in files}
    with valid_schema(format, "correct it"):
        return FieldDecoders(forms, keeps_going)
