"""`rstream copy`, `import` and `export`: entries from a stream or a file to a stream or a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypedDict, Unpack

import click

from spark_streams.base.units import counted
from spark_streams.connector.errors import CopyTargetError
from spark_streams.operations.commands import shared
from spark_streams.operations.commands.dead import progress
from spark_streams.operations.commands.dry_run import change_line, server_time, yes_option
from spark_streams.operations.commands.exit_codes import REFUSED, found
from spark_streams.operations.commands.groups.positions import target_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.groups.position import GroupTarget
    from spark_streams.operations.transfer.copied_groups import CopiedGroup
    from spark_streams.operations.transfer.passing import Filled, Range
    from spark_streams.operations.transfer.transferred import TransferEntry, TransferRules


class RuleOptions(TypedDict):
    """Values of the options that select and change entries."""

    where: tuple[str, ...]
    limit: int | None
    transform: str | None


class RangeOptions(RuleOptions):
    """Values of the options for a range of a stream, and of those above."""

    begin: GroupTarget | None
    end: GroupTarget | None
    newest: int | None


_POSITION = "entry ID, time, or 1h: an hour ago"
_SHOWN = 200  # characters of a value
# The options for a range of a stream.
range_options = shared.OptionSet(
    click.option("--from", "begin", metavar="ID|TIME", callback=target_of, help=f"First entry: {_POSITION}."),
    click.option("--to", "end", metavar="ID|TIME", callback=target_of, help="Last entry: its ID, or before this time."),
    click.option("--last", "newest", type=click.IntRange(1), metavar="N", help="The N newest entries of that range."),
)
# The options that select and change entries.
rule_options = shared.OptionSet(
    click.option("--where", multiple=True, metavar="FIELD=VALUE", help="Only entries with this field; repeatable."),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Maximum number of entries, oldest first."),
    click.option("--transform", metavar="MODULE:FUNCTION", help="Function that changes each entry, or skips it."),
)


rate_option = click.option("--rate", type=click.IntRange(1), metavar="N", help="Maximum number of entries per second.")


def rules_of(options: RuleOptions, rate: int | None = None) -> TransferRules:
    """Return the rules of these options. Raises click.UsageError, TransformError."""
    from spark_streams.connector.deadletter.transform import load
    from spark_streams.operations.transfer.transferred import TransferRules, parse_fields

    with shared.refusing_usage():
        fields = parse_fields(options["where"])
    transform = options["transform"]
    return TransferRules(fields, options["limit"], rate, None if transform is None else load(transform))


def selected_range(session: Session, stream: str, options: RangeOptions) -> Range:
    """Return the range of these options. Raises click.UsageError, StreamStateError, ServerError."""
    from spark_streams.operations.transfer.passing import find_range

    begin, end, newest = options["begin"], options["end"], options["newest"]
    with shared.refusing_usage():
        return session.run(lambda server: find_range(server, stream, begin, end, newest, server_time(server)))


@dataclass
class TransferReport:
    """Report of a copy or an import."""

    source: str  # its name
    target: str  # its name
    yes: bool
    as_json: bool
    groups: list[CopiedGroup] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the user should know
    first: list[TransferEntry] = field(default_factory=list)  # entries of an import

    def show(self, filled: Filled, verb: str) -> None:
        """Print the report. verb: `copied`."""
        passed, state = filled.passed, filled.state
        expected, actual = passed.digest.facts(), None if filled.actual is None else filled.actual.facts()
        if self.as_json:
            target = {"exists": state.exists, "length": state.length, "last_id": str(state.last)}
            shared.print_json(
                {
                    **{"dry_run": not self.yes, "refused": [], **passed.facts()},
                    **{"source": expected, "target": actual, "target_before": target},
                    **{"groups": [asdict(group) for group in self.groups], "notes": self.notes},
                    **({} if self.yes or not self.first else {"first": _rows(self.first)}),
                }
            )
            return
        rows = [("source", self.source, expected), *([("target", self.target, actual)] if actual else [])]
        shared.print_table(
            ("", "name", "entries", "first", "last", "checksum"),
            [
                (side, name, facts["entries"], facts["first"] or "-", facts["last"] or "-", facts["checksum"])
                for side, name, facts in rows
            ],
        )
        if not self.yes:
            before = f"{counted(state.length, 'entry', 'entries')}, last ID {state.last}" if state.exists else "new"
            shared.say(f"target: {self.target} ({before})")
        if self.groups:
            shared.print_table(
                ("group", "source", "target", "pending (not copied)", "state"),
                [(g.group, g.position, g.target_position, g.pending, g.state) for g in self.groups],
            )
        for note in self.notes:
            shared.say(f"note: {note}")
        summary = [f"{verb} {counted(passed.sent, 'entry', 'entries')}"]
        summary += [f"{passed.already:,} were in the target"] if passed.already else []
        summary += [f"{passed.skipped:,} skipped by the transform"] if passed.skipped else []
        if self.yes:
            summary.append(f"{passed.seconds:.1f} s, {passed.facts()['entries_per_second']:,}/s")
        shared.say(change_line(self.yes, " · ".join(summary)))

    def refuse(self, reason: str) -> NoReturn:
        """Print why the change would be refused, and exit."""
        found(REFUSED)
        if self.as_json:
            shared.print_json({"dry_run": True, "refused": [reason]})
        else:
            shared.say(f"would be refused now: {reason}")
        raise click.exceptions.Exit(REFUSED)


def _rows(entries: Sequence[TransferEntry]) -> list[dict[str, str]]:
    """Return the fields of entries, with long values cut."""
    fields = [(str(entry.id), name, value) for entry in entries for name, value in entry.texts()]
    return [
        {"id": entry, "field": name, "value": f"{value[:_SHOWN]}{'…' * (len(value) > _SHOWN)}"}
        for entry, name, value in fields
    ]


_FIRST = 5  # entries in the report of a dry run as JSON


@click.command(short_help="Copy entries to another stream or server.")
@click.argument("source")
@click.argument("target")
@range_options
@rule_options
@rate_option
@click.option("--groups", "with_groups", is_flag=True, help="Also create the groups of SOURCE, or move unused ones.")
@yes_option
@shared.url_option
@shared.to_url_option
@shared.json_option
def copy(
    source: str,
    target: str,
    rate: int | None,
    with_groups: bool,
    yes: bool,
    url: str,
    to_url: str | None,
    as_json: bool,
    **options: Unpack[RangeOptions],
) -> None:
    """Append the entries of stream SOURCE to stream TARGET, byte for byte and under the same IDs. TARGET may be on
    another server (--to-url).

    A dry run, without --yes, reads the entries and prints how many would be copied. With --yes the command also reads
    TARGET back, and compares number and checksum of the entries with SOURCE.

    If a copy was stopped, the same command continues after the last ID of TARGET. It refuses a TARGET whose entries
    from the first selected one on are not those of the copy. Entries that are added to SOURCE meanwhile are left for
    the next copy.

    \b
    --from 1795163834542-0    from this entry; --to: up to and including this entry
    --from 2026-11-20T08:00   from the first entry at or after this time (UTC); --to: before this time
    --from 1h                 the same, for the time one hour ago (500ms, 30s, 15m, 2h, 7d)

    The transform is a function of one argument with `fields` (a dict), `pairs` (a list of name and value) and `id`. It
    returns the new fields as a dict or as a list of pairs, or None to skip the entry.

    --groups creates each group of SOURCE at its last-delivered ID. A later copy moves the groups that an earlier one
    has created to their new positions, if no consumer has used them. Other groups of TARGET stay, and the report names
    them. Pending entries are not copied.

    \b
    Examples:
      rstream copy orders orders --url redis://prod:6379 --to-url embedded: --last 10000 --yes
      rstream copy orders orders --to-url redis+cluster://a:6379,b:6379 --groups --rate 20000 --yes
      rstream copy orders masked --where country=DE --transform masking:hide_names --yes
    """
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.transfer.copied_groups import copy_groups, decide, fetch_groups, plan_groups
    from spark_streams.operations.transfer.passing import stream_pages

    rules, address = rules_of(options, rate), shared.address_of(url)
    to_address = shared.address_of(url, yes) if to_url is None else shared.address_of(to_url, yes, shared.TARGET)
    if source == target and str(to_address) == str(address):
        raise click.UsageError(
            "SOURCE and TARGET are the same stream; name another TARGET, or another server by --to-url"
        )
    with Session(address, "rstream copy") as reader, Session(to_address, "rstream copy") as writer:
        report = TransferReport(f"{source} at {address}", f"{target} at {to_address}", yes, as_json)
        pages = stream_pages(reader, source, selected_range(reader, source, options))
        filled = _fill(report, writer, target, pages, rules)
        groups = reader.run(lambda server: fetch_groups(server, source)) if with_groups else []
        if groups and yes and filled.is_equal:
            report.groups = writer.run(lambda server: copy_groups(server, target, groups))
        elif groups and filled.state.exists:
            report.groups = writer.run(lambda server: plan_groups(server, target, groups))
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
@shared.url_option
@shared.json_option
def import_file(
    file: str, stream: str, rate: int | None, yes: bool, url: str, as_json: bool, **options: Unpack[RuleOptions]
) -> None:
    """Append the entries of FILE to STREAM, byte for byte and under their IDs.

    FILE is a file of rstream export, or - for JSON Lines from standard input. Entries are in the order of their IDs.

    A dry run, without --yes, reads the file and prints how many entries would be added. With --yes the command compares
    and continues as rstream copy does.

    \b
    Examples:
      rstream import orders.jsonl orders --yes
      rstream export orders - --url redis://prod:6379 | rstream import - sample --limit 100 --yes
    """
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.transfer.entry_files import is_parquet, read_file

    rules = rules_of(options, rate)
    with shared.refusing_usage():
        is_parquet(file)
    with Session(shared.address_of(url, starts=yes), "rstream import") as writer:
        report = TransferReport(file, f"{stream} at {writer.address}", yes, as_json)
        filled = _fill(report, writer, stream, _noting(read_file(file), report.first), rules)
    _finish(report, writer, filled, "imported")


def _noting(pages: Iterable[list[TransferEntry]], first: list[TransferEntry]) -> Iterator[list[TransferEntry]]:
    """Yield the pages, and append the first entries to a list."""
    for page in pages:
        first += page[: _FIRST - len(first)]
        yield page


def _fill(
    report: TransferReport, writer: Session, stream: str, pages: Iterable[list[TransferEntry]], rules: TransferRules
) -> Filled:
    from spark_streams.operations.transfer.passing import fill

    try:
        with progress("copy", quiet=report.as_json) as tell:
            return fill(writer, stream, pages, rules, report.yes, tell)
    except CopyTargetError as error:
        if report.yes:
            raise
        report.refuse(error.message)


def _finish(report: TransferReport, writer: Session, filled: Filled, verb: str) -> None:
    """Print the report. Raises CopyMismatchError."""
    from spark_streams.operations.transfer.passing import require_equal

    if report.yes and writer.address.forgets:
        report.notes.append(f"{writer.address} forgets its streams when it ends; embedded:/path/of/a/folder keeps them")
    report.show(filled, verb)
    require_equal(filled, report.target)


@click.command(short_help="Write entries of a stream to a file.")
@click.argument("stream")
@click.argument("file")
@range_options
@rule_options
@click.option("--with-groups", is_flag=True, help="Also write the groups, for tests: JSON Lines only.")
@shared.url_option
@shared.json_option
def export(stream: str, file: str, with_groups: bool, url: str, as_json: bool, **options: Unpack[RangeOptions]) -> None:
    """Write the entries of STREAM to FILE, byte for byte. rstream import reads the file.

    The name of FILE gives its form: .jsonl or .ndjson (JSON Lines), .parquet, or - for JSON Lines on standard output.
    FILE is replaced when it is complete.

    JSON: bytes that are not UTF-8 are written as {"base64": "…"}. If a field name is not UTF-8 or occurs twice,
    `fields` is a list of [name, value] instead of an object. Parquet: the columns are `id` and `fields`, a list of name
    and value as bytes.

    Options that select and change entries are those of rstream copy.

    --with-groups also writes each group: its position, its consumers, and its pending entries with consumer, idle time
    and deliveries. LocalEngine.load restores such a file for a test, and rstream import refuses it. A group may have
    100,000 pending entries. Those below --from or --last are left out. An entry that the transform skips looks deleted.

    \b
    Examples:
      rstream export orders orders.parquet
      rstream export orders - --last 100 | jq .fields.amount
      rstream export orders incident.jsonl --with-groups --last 1000
    """
    from spark_streams.base.ids import MIN_ID
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.transfer.copied_groups import GroupsState, fetch_groups_state
    from spark_streams.operations.transfer.entry_files import STANDARD, is_parquet, write_file
    from spark_streams.operations.transfer.passing import stream_pages, transfer

    if as_json and file == STANDARD:
        raise click.UsageError("standard output has the entries, so it cannot have the report; leave out --json")
    rules, quiet = rules_of(options), as_json or file == STANDARD
    with shared.refusing_usage():
        is_parquet(file)
        if with_groups:
            _require_whole(file, options)
    state: GroupsState | None = None
    with Session(shared.address_of(url), "rstream export") as session, progress("export", quiet) as tell:
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
        shared.print_json({"stream": stream, "file": file, **facts, **passed.facts()})
        return
    entries = counted(passed.sent, "entry", "entries")
    if state is not None:
        entries = f"{entries} and {counted(state.groups, 'group')} ({state.pending:,} pending)"
        if state.left_out:
            shared.say(
                f"note: {state.left_out:,} pending entries below the first selected entry are left out", err=True
            )
    shared.say(f"exported {entries} of {stream} to {file} · checksum {facts['checksum']}", err=True)


def _require_whole(file: str, options: RangeOptions) -> None:
    """Raise click.UsageError if a file with groups would lack entries that the groups have yet to read."""
    from spark_streams.operations.transfer.entry_files import is_parquet

    if is_parquet(file):
        raise click.UsageError("--with-groups writes JSON Lines; name a FILE that ends in .jsonl or .ndjson, or -")
    if options["end"] is not None or options["where"] or options["limit"] is not None:
        raise click.UsageError(
            "--with-groups needs all entries up to the last one; leave out --to, --where and --limit"
        )
