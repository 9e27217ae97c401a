"""`rstream export`: write entries of a stream to a file."""

from __future__ import annotations

from typing import Unpack

import click

from spark_streams.commands.dead.criteria import progress
from spark_streams.commands.shared import address_of, json_option, print_json, say, url_option
from spark_streams.commands.transfer.options import (
    SelectionOptions,
    range_options,
    rule_options,
    rules_of,
    selected_pages,
)
from spark_streams.errors import OptionError
from spark_streams.monitor.terminal.units import counted


@click.command(short_help="Write entries of a stream to a file.")
@click.argument("stream")
@click.argument("file")
@range_options
@rule_options
@url_option
@json_option
def export(stream: str, file: str, url: str, as_json: bool, **options: Unpack[SelectionOptions]) -> None:
    """Write the entries of STREAM to FILE, byte for byte. rstream import reads the file.

    The name of FILE gives its form: .jsonl or .ndjson (JSON Lines), .parquet, or - for JSON Lines on standard output.
    FILE is replaced when it is complete, so an export that was stopped changes nothing.

    JSON: bytes that are not UTF-8 are written as {"base64": "…"}. If a field name is not UTF-8 or occurs twice,
    `fields` is a list of [name, value] instead of an object. Parquet: the columns are `id` and `fields`, a list of name
    and value as bytes.

    --from, --to, --last, --where, --limit and --transform are those of rstream copy.

    \b
    Examples:
      rstream export orders orders.parquet
      rstream export orders - --last 100 | jq .fields.amount
      rstream export orders yesterday.jsonl --from 2026-11-20 --to 2026-11-21
    """
    from spark_streams.model.ids import MIN_ID
    from spark_streams.transfer.files import STANDARD, is_parquet, write_file
    from spark_streams.transfer.transfer import transfer
    from spark_streams.wire.session import Session

    if as_json and file == STANDARD:
        raise click.UsageError("standard output has the entries, so it cannot have the report; leave out --json")
    rules, quiet = rules_of(options), as_json or file == STANDARD
    try:
        is_parquet(file)
    except OptionError as error:
        raise click.UsageError(error.message) from None
    with Session(address_of(url), "rstream export") as session, progress("export", quiet) as tell:
        pages = selected_pages(session, stream, options)
        with write_file(file) as write:
            passed = transfer(pages, rules, MIN_ID, write, tell)
    facts = passed.digest.facts()
    if as_json:
        print_json({"stream": stream, "file": file, **facts, **passed.facts()})
        return
    entries = counted(passed.sent, "entry", "entries")
    say(f"exported {entries} of {stream} to {file} · checksum {facts['checksum']}", err=True)
