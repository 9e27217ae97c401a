"""`rstream copy` and `rstream import`: append the entries of a stream or a file to a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from spark_streams.connector.errors import CopyTargetError, OptionError
from spark_streams.operations.commands.dead.criteria import progress
from spark_streams.operations.commands.dry_run import yes_option
from spark_streams.operations.commands.shared import TARGET, address_of, json_option, to_url_option, url_option
from spark_streams.operations.commands.transfer.options import (
    RuleOptions,
    SelectionOptions,
    TransferReport,
    range_options,
    rate_option,
    rule_options,
    rules_of,
    selected_pages,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.transfer.entries import Entry, Rules
    from spark_streams.operations.transfer.transfer import Filled


_FIRST = 5  # entries in the report of a dry run as JSON


@click.command(short_help="Copy entries to another stream or server.")
@click.argument("source")
@click.argument("target")
@range_options
@rule_options
@rate_option
@click.option("--groups", "with_groups", is_flag=True, help="Also create the groups of SOURCE, or move unused ones.")
@yes_option
@url_option
@to_url_option
@json_option
def copy(
    source: str,
    target: str,
    rate: int | None,
    with_groups: bool,
    yes: bool,
    url: str,
    to_url: str | None,
    as_json: bool,
    **options: Unpack[SelectionOptions],
) -> None:
    """Append the entries of stream SOURCE to stream TARGET, byte for byte and under the same IDs. TARGET may be on
    another server (--to-url).

    Without --yes this is a dry run, which reads the entries and prints how many would be copied. With --yes the command
    also reads TARGET back at the end, and compares the number of entries and their checksum with SOURCE.

    A copy that was stopped is started again with the same command: it continues after the last ID of TARGET. It refuses
    a TARGET whose entries from the first selected one on are not those of the copy. Entries that are added to SOURCE
    during the copy are left for the next one.

    \b
    --from 1795163834542-0    from this entry; --to: up to and including this entry
    --from 2026-11-20T08:00   from the first entry at or after this time (UTC); --to: before this time
    --from 1h                 the same, for the time one hour ago (500ms, 30s, 15m, 2h, 7d)

    The transform is a function of one argument. It has `fields` (a dict), `pairs` (a list of name and value) and `id`.
    The function returns the new fields as a dict or as a list of pairs, or None to skip the entry.

    --groups creates each group of SOURCE at its last-delivered ID. A later copy moves the groups that an earlier one
    has created to their new positions, if no consumer has used them. Other groups of TARGET stay, and the report names
    them. Pending entries are not copied: the groups of TARGET have none.

    \b
    Examples:
      rstream copy orders orders --url redis://prod:6379 --to-url embedded: --last 10000 --yes
      rstream copy orders orders --to-url redis+cluster://a:6379,b:6379 --groups --rate 20000 --yes
      rstream copy orders masked --where country=DE --transform masking:hide_names --yes
    """
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.transfer.groups import apply, decide, fetch_groups, plan

    rules, address = rules_of(options, rate), address_of(url)
    to_address = address_of(url, yes) if to_url is None else address_of(to_url, yes, TARGET)
    if source == target and str(to_address) == str(address):
        raise click.UsageError(
            "SOURCE and TARGET are the same stream; name another TARGET, or another server by --to-url"
        )
    with Session(address, "rstream copy") as reader, Session(to_address, "rstream copy") as writer:
        report = TransferReport(f"{source} at {address}", f"{target} at {to_address}", yes, as_json)
        pages = selected_pages(reader, source, options)
        filled = _fill(report, writer, target, pages, rules)
        groups = reader.run(lambda server: fetch_groups(server, source)) if with_groups else []
        if groups and yes and filled.is_equal:
            report.groups = writer.run(lambda server: apply(server, target, groups))
        elif groups and filled.state.exists:
            report.groups = writer.run(lambda server: plan(server, target, groups))
        else:
            report.groups = [decide(group, None, ()) for group in groups]
        if sum(group.pending for group in report.groups):
            report.notes.append(
                "pending entries of groups are not copied; the groups of the target do not deliver them"
            )
        report.notes += [note for group in report.groups if (note := group.note(target)) is not None]
    _finish(report, writer, filled, "copied")


@click.command("import", short_help="Append the entries of a file to a stream.")
@click.argument("file")
@click.argument("stream")
@rule_options
@rate_option
@yes_option
@url_option
@json_option
def import_file(
    file: str, stream: str, rate: int | None, yes: bool, url: str, as_json: bool, **options: Unpack[RuleOptions]
) -> None:
    """Append the entries of FILE to STREAM, byte for byte and under their IDs.

    FILE is a file of rstream export: .jsonl, .ndjson, .parquet, or - for JSON Lines from standard input. Entries are in
    the order of their IDs.

    Without --yes this is a dry run, which reads the file and prints how many entries would be added. With --yes the
    command also reads STREAM back at the end, and compares the number of entries and their checksum with FILE. An
    import that was stopped is started again with the same command: it continues after the last ID of STREAM.

    \b
    Examples:
      rstream import orders.parquet orders
      rstream import orders.jsonl orders --yes
      rstream export orders - --url redis://prod:6379 | rstream import - sample --limit 100 --yes
    """
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.transfer.files import is_parquet, read_file

    rules = rules_of(options, rate)
    try:
        is_parquet(file)
    except OptionError as error:
        raise click.UsageError(error.message) from None
    with Session(address_of(url, starts=yes), "rstream import") as writer:
        report = TransferReport(file, f"{stream} at {writer.address}", yes, as_json)
        filled = _fill(report, writer, stream, _noting(read_file(file), report.first), rules)
    _finish(report, writer, filled, "imported")


def _noting(pages: Iterable[list[Entry]], first: list[Entry]) -> Iterator[list[Entry]]:
    """Yield the pages, and append the first entries to a list."""
    for page in pages:
        first += page[: _FIRST - len(first)]
        yield page


def _fill(report: TransferReport, writer: Session, stream: str, pages: Iterable[list[Entry]], rules: Rules) -> Filled:
    from spark_streams.operations.transfer.transfer import fill

    try:
        with progress("copy", quiet=report.as_json) as tell:
            return fill(writer, stream, pages, rules, report.yes, tell)
    except CopyTargetError as error:
        if report.yes:
            raise
        report.refuse(error.message)


def _finish(report: TransferReport, writer: Session, filled: Filled, verb: str) -> None:
    """Print the report. Raises CopyMismatchError."""
    from spark_streams.operations.transfer.transfer import require_equal

    if report.yes and writer.address.forgets:
        report.notes.append(f"{writer.address} forgets its streams when it ends; embedded:/path/of/a/folder keeps them")
    report.show(filled, verb)
    require_equal(filled, report.target)
