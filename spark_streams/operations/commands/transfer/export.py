"""`rstream export`: write entries of a stream to a file."""

from __future__ import annotations

from typing import Unpack

import click

from spark_streams.base.units import counted
from spark_streams.connector.errors import OptionError
from spark_streams.operations.commands.dead.criteria import progress
from spark_streams.operations.commands.shared import address_of, json_option, print_json, say, url_option
from spark_streams.operations.commands.transfer.options import (
    SelectionOptions,
    range_options,
    rule_options,
    rules_of,
    selected_range,
)


@click.command(short_help="Write entries of a stream to a file.")
@click.argument("stream")
@click.argument("file")
@range_options
@rule_options
@click.option("--with-groups", is_flag=True, help="Also write the groups, for tests: JSON Lines only.")
@url_option
@json_option
def export(
    stream: str, file: str, with_groups: bool, url: str, as_json: bool, **options: Unpack[SelectionOptions]
) -> None:
    """Write the entries of STREAM to FILE, byte for byte. rstream import reads the file.

    The name of FILE gives its form: .jsonl or .ndjson (JSON Lines), .parquet, or - for JSON Lines on standard output.
    FILE is replaced when it is complete, so an export that was stopped changes nothing.

    JSON: bytes that are not UTF-8 are written as {"base64": "…"}. If a field name is not UTF-8 or occurs twice,
    `fields` is a list of [name, value] instead of an object. Parquet: the columns are `id` and `fields`, a list of name
    and value as bytes.

    --from, --to, --last, --where, --limit and --transform are those of rstream copy.

    --with-groups also writes each group: its position, its consumers, and its pending entries with consumer, idle time
    and deliveries. LocalEngine.load restores such a file for a test, and rstream import refuses it. A group may have
    100,000 pending entries. Those below --from or --last are left out. An entry that the transform skips looks deleted.

    \b
    Examples:
      rstream export orders orders.parquet
      rstream export orders - --last 100 | jq .fields.amount
      rstream export orders yesterday.jsonl --from 2026-11-20 --to 2026-11-21
      rstream export orders incident.jsonl --with-groups --last 1000
    """
    from spark_streams.base.ids import MIN_ID
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.transfer.files import STANDARD, is_parquet, write_file
    from spark_streams.operations.transfer.groups_state import GroupsState, fetch_groups_state
    from spark_streams.operations.transfer.reader import stream_pages
    from spark_streams.operations.transfer.transfer import transfer

    if as_json and file == STANDARD:
        raise click.UsageError("standard output has the entries, so it cannot have the report; leave out --json")
    rules, quiet = rules_of(options), as_json or file == STANDARD
    try:
        is_parquet(file)
        if with_groups:
            _require_whole(file, options)
    except OptionError as error:
        raise click.UsageError(error.message) from None
    state: GroupsState | None = None
    with Session(address_of(url), "rstream export") as session, progress("export", quiet) as tell:
        first, last = selected_range(session, stream, options)
        if with_groups:
            state = session.run(lambda server: fetch_groups_state(server, stream, first))
            last = state.last
        with write_file(file, b"" if state is None else state.lines) as write:
            passed = transfer(stream_pages(session, stream, (first, last)), rules, MIN_ID, write, tell)
    facts = passed.digest.facts()
    if state is not None:
        facts |= {"groups": state.groups, "pending": state.pending, "pending_left_out": state.left_out}
    if as_json:
        print_json({"stream": stream, "file": file, **facts, **passed.facts()})
        return
    entries = counted(passed.sent, "entry", "entries")
    if state is not None:
        entries = f"{entries} and {counted(state.groups, 'group')} ({state.pending:,} pending)"
        if state.left_out:
            say(f"note: {state.left_out:,} pending entries below the first selected entry are left out", err=True)
    say(f"exported {entries} of {stream} to {file} · checksum {facts['checksum']}", err=True)


def _require_whole(file: str, options: SelectionOptions) -> None:
    """Raise click.UsageError if a file with groups would lack entries that the groups have yet to read."""
    from spark_streams.operations.transfer.files import is_parquet

    if is_parquet(file):
        raise click.UsageError("--with-groups writes JSON Lines; name a FILE that ends in .jsonl or .ndjson, or -")
    if options["end"] is not None or options["where"] or options["limit"] is not None:
        raise click.UsageError(
            "--with-groups needs all entries up to the last one; leave out --to, --where and --limit"
        )
