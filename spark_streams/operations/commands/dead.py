"""`rstream dead …`: list, show, export and purge dead letters; the options that select them, and a progress bar."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from spark_streams.base.printable import json_text, shortened
from spark_streams.base.units import counted, duration
from spark_streams.connector.errors import ConfigError, StreamStateError
from spark_streams.connector.operator_commands import command_on
from spark_streams.operations.commands import shared
from spark_streams.operations.commands.dry_run import change_line, say_bounds, up_to_last, yes_option
from spark_streams.operations.commands.print_entry import (
    age,
    decode_options,
    no_such_entry,
    note_absent_fields,
    parse_id,
    print_entry,
)

if TYPE_CHECKING:
    from spark_streams.connector.admin.dead_letters import Criteria, KindCounts
    from spark_streams.connector.admin.groups import WaitingEntries
    from spark_streams.connector.schemas.decode_process import FieldDecoders
    from spark_streams.connector.wire.address import Address
    from spark_streams.connector.wire.connection import Server


_LINE_SECONDS = 0.2  # between two lines of progress for a program


class FilterOptions(TypedDict):
    """Values of the options that select dead letters."""

    streams: tuple[str, ...]
    reasons: tuple[str, ...]
    stages: tuple[str, ...]
    errors: tuple[str, ...]
    fields: tuple[str, ...]
    ids: tuple[str, ...]
    older: str | None
    newer: str | None
    first: str | None
    last: str | None


# The options that select dead letters.
criteria_options = shared.OptionSet(
    click.option("--stream", "streams", multiple=True, metavar="TEXT", help="Only from this stream (dl.stream)."),
    click.option("--reason", "reasons", multiple=True, metavar="TEXT", help="Only with this reason (dl.reason)."),
    click.option("--stage", "stages", multiple=True, metavar="TEXT", help="Only with this failed step (dl.stage)."),
    click.option("--error", "errors", multiple=True, metavar="TEXT", help="Only with this error (dl.error)."),
    click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="Only entries with this field value."),
    click.option("--id", "ids", multiple=True, metavar="ID", help="Only this dead letter; repeatable."),
    click.option("--older", metavar="TIME", help="Only dead letters written longer ago than this (30m, 7d)."),
    click.option("--newer", metavar="TIME", help="Only dead letters written within this time."),
    click.option("--first-id", "first", metavar="ID", help="Only dead letters with this ID or a later one."),
    click.option("--last-id", "last", metavar="ID", help="Only dead letters with this ID or an earlier one."),
)


def criteria_of(filters: FilterOptions) -> Criteria:
    """Return the criteria of these options. Raises click.UsageError."""
    from spark_streams.connector.admin.dead_letters import parse_criteria

    with shared.refusing_usage():
        return parse_criteria(**filters)


def print_why_none_match(address: Address, stream: str, criteria: Criteria, for_program: bool = False) -> None:
    """Print why no dead letter matched. for_program: on standard error. Raises ServerError."""
    from spark_streams.connector.admin.dead_letters import Criteria, count_by_kind, explain_no_match

    with progress("count", quiet=for_program) as tell:
        counts = count_by_kind(address, stream, Criteria(), tell)
    shared.say(explain_no_match(stream, criteria, counts), err=for_program)


@contextlib.contextmanager
def progress(title: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield a function of (done, total, note) that shows a progress bar on standard error. quiet: show nothing.

    With RSTREAM_PROGRESS=json it writes lines for a program instead: {"done": 200, "total": 1000, "note": ""}."""
    if os.environ.get("RSTREAM_PROGRESS") == "json":
        with contextlib.closing(_ProgressLines()) as lines:
            yield lines.tell
        return
    if quiet:
        yield lambda done, total, note="": None
        return
    from rich.console import Console

    from spark_streams.connector.admin.dead_letters import showing_progress

    with showing_progress(Console(emoji=False, stderr=True, highlight=False, soft_wrap=True), title) as tell:
        yield tell


class _ProgressLines:
    """Lines of JSON on standard error: a few per second, and the last one."""

    def __init__(self) -> None:
        self._last = ""  # not written yet
        self._written_at = -math.inf

    def tell(self, done: int, total: int, note: str = "") -> None:
        """Write the line, or keep it as the last one."""
        self._last = json_text({"done": done, "total": total, "note": note})
        if time.monotonic() - self._written_at >= _LINE_SECONDS:
            self.close()
            self._written_at = time.monotonic()

    def close(self) -> None:
        """Write the line that was kept."""
        if self._last:
            shared.say(self._last, err=True)
            self._last = ""


@click.group(cls=shared.CommandGroup, short_help="Dead letters: list, send back, delete.")
def dead() -> None:
    """Dead letters are entries that could not be processed: show them, send them back, or delete them.

    --stream, --reason, --stage and --error accept patterns with * ? and [], as for file names. A dead letter must match
    every option that is set. Of an option that is set several times it must match one value.

    \b
    Examples:
      rstream dead list                     list streams that hold dead letters
      rstream dead show orders:dead --reason 'decode*'
      rstream dead redrive orders:dead
    """


@dead.command("list")
@click.argument("stream", required=False)
@criteria_options
@shared.url_option
@shared.json_option
def list_(stream: str | None, url: str, as_json: bool, **filters: Unpack[FilterOptions]) -> None:
    """List the streams that hold dead letters, and the entries that wait for a retry. With STREAM: count its dead
    letters by kind."""
    from spark_streams.connector.admin.dead_letters import count_by_kind, fetch_streams

    if stream is None:
        if any(value not in (None, ()) for value in filters.values()):
            raise click.UsageError("options that select dead letters need a STREAM; name one")
        with shared.connect(url) as server:
            streams, waiting = fetch_streams(server)
        if as_json:
            shared.print_json([*[one.facts() for one in streams], *map(asdict, waiting)])
            return
        rows = [(one.stream, one.letters, age(one.oldest), age(one.newest)) for one in streams]
        shared.print_table(("stream", "dead letters", "oldest ", "newest "), rows)
        if waiting:
            _print_waiting(waiting)
        return
    address, criteria = shared.address_of(url), criteria_of(filters)
    with progress("list", quiet=as_json) as tell:
        counts = count_by_kind(address, stream, criteria, tell)
    if as_json:
        shared.print_json(_kinds(counts))
    elif counts.letters:
        _print_kinds(counts)
    if not counts.letters:
        print_why_none_match(address, stream, criteria, as_json)


@dead.command()
@click.argument("stream")
@click.argument("entry", metavar="[ID]", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Maximum number of dead letters, oldest first.",
)
@criteria_options
@decode_options()
@shared.url_option
@shared.json_option
def show(
    stream: str,
    entry: str | None,
    limit: int,
    url: str,
    as_json: bool,
    decoders: FieldDecoders | None,
    **filters: Unpack[FilterOptions],
) -> None:
    """Show dead letters of STREAM: the entry's fields, and why it failed (dl.*). With ID: only this dead letter.

    --decode and --schema show decoded values, as rstream show does.
    """
    from spark_streams.connector.admin.dead_letters import as_json as object_of
    from spark_streams.connector.admin.dead_letters import each_dead_letter
    from spark_streams.connector.deadletter.envelope import PREFIX, raw

    if entry is not None:
        if filters["first"] or filters["last"]:
            raise click.UsageError("an ID selects one dead letter; leave out --first-id and --last-id")
        filters["first"] = filters["last"] = entry
    address, criteria = shared.address_of(url), criteria_of(filters)
    shown: list[dict[str, object]] = []
    names_shown: set[bytes] = set()
    for dead_letter in each_dead_letter(address, stream, criteria, limit):
        own = [(raw(name), raw(value)) for name, value in dead_letter.pairs]
        names_shown |= {name for name, _ in own}
        if not as_json:
            click.echo("", nl=bool(shown))
            envelope_pairs = [(PREFIX + name, value) for name, value in dead_letter.envelope.items() if value]
            pairs = [*own, *((raw(name), raw(value)) for name, value in envelope_pairs)]
            print_entry("dead letter", dead_letter.id, pairs, decoders=decoders)
        decoded = {"decoded": decoders.as_json(own)} if as_json and decoders is not None else {}
        shown.append({**object_of(dead_letter), **decoded})
    note_absent_fields(decoders, names_shown)
    if not shown and entry is not None:
        with shared.connect(url) as server:
            raise _no_such_dead_letter(server, stream, entry)
    if as_json:
        shared.print_json(shown)
    if not shown:
        print_why_none_match(address, stream, criteria, as_json)


@dead.command()
@click.argument("stream")
@shared.output_option("The file to write; - for standard output.", "-")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of dead letters, oldest first.")
@criteria_options
@shared.url_option
def export(stream: str, output: str, limit: int | None, url: str, **filters: Unpack[FilterOptions]) -> None:
    """Write dead letters of STREAM as JSON lines: id, envelope, fields.

    Bytes are written as by rstream export. Nothing is deleted.
    """
    from spark_streams.connector.admin.dead_letters import as_line, each_dead_letter

    address, criteria = shared.address_of(url), criteria_of(filters)
    written = 0
    try:
        with click.open_file(output, "w", encoding="utf-8") as file:
            for dead_letter in each_dead_letter(address, stream, criteria, limit):
                file.write(as_line(dead_letter) + "\n")
                written += 1
    except OSError as error:
        raise ConfigError(f"the dead letters cannot be written to {output}: {error}") from error
    if output != "-":
        shared.say(f"{counted(written, 'dead letter')} of {stream} written to {output}", err=True)
    if not written:
        print_why_none_match(address, stream, criteria, for_program=True)


@dead.command()
@click.argument("stream")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of dead letters, oldest first.")
@yes_option
@criteria_options
@shared.url_option
@shared.json_option
def purge(stream: str, limit: int | None, yes: bool, url: str, as_json: bool, **filters: Unpack[FilterOptions]) -> None:
    """Delete dead letters of STREAM permanently. Other entries of STREAM stay.

    \b
    Examples:
      rstream dead purge orders:dead --older 30d --yes
    """
    from spark_streams.connector.admin.dead_letters import purge as delete

    address, criteria = shared.address_of(url, starts=yes), criteria_of(filters)
    with progress("purge", quiet=as_json) as tell:
        purged = delete(address, stream, criteria, limit, not yes, lambda done: tell(done.looked_at, done.total))
    bounds = [] if yes else up_to_last([purged.last])
    if as_json:
        kinds = _kinds(purged.counts)
        shared.print_json(
            {"stream": stream, "dry_run": not yes, "deleted": purged.deleted, "by": kinds, "bounds": bounds}
        )
    else:
        if purged.deleted and not yes:
            _print_kinds(purged.counts)
        shared.say(change_line(yes, f"deleted {counted(purged.deleted, 'dead letter')} of {stream}"))
        say_bounds(bounds)
    if not purged.counts.letters:
        print_why_none_match(address, stream, criteria, as_json)


def _no_such_dead_letter(server: Server, stream: str, entry: str) -> StreamStateError:
    if not server.execute("XRANGE", stream, *map(bytes, parse_id(entry)), "COUNT", 1):
        return no_such_entry(server, stream, entry)
    return StreamStateError(
        f"entry {entry} of stream {stream!r} is not a dead letter, or does not match the other options; "
        f"{command_on(stream, 'show', entry)} shows it"
    )


def _print_waiting(waiting: list[WaitingEntries]) -> None:
    shared.print_table(
        ("waiting for a retry in", "entries", "of stream", "group", "next attempt", "first one due"),
        [(one.waits_in, one.entries, one.stream, one.group, one.attempt or "-", _due(one)) for one in waiting],
    )


def _due(waiting: WaitingEntries) -> str:
    """Return when the first of the waiting entries is due."""
    if waiting.attempt is None:
        return "returned"
    if waiting.due_in is None:
        return "no query has retryDelay"
    return f"in {duration(waiting.due_in)}" if waiting.due_in else "now"


def _kinds(counts: KindCounts) -> list[dict[str, object]]:
    from spark_streams.connector.admin.dead_letters import KIND

    return [{**dict(zip(KIND, kind, strict=True)), **asdict(count)} for kind, count in counts]


def _print_kinds(counts: KindCounts) -> None:
    with_error = any(error for (_, _, _, error), _ in counts)
    shared.print_table(
        ("reason", "stage", *(["error"] if with_error else []), "of stream", "dead letters", "oldest ", "newest "),
        [
            (
                *map(shortened, (reason, stage, *([error or "-"] if with_error else []), stream)),
                *(count.letters, age(count.first), age(count.last)),
            )
            for (stream, stage, reason, error), count in counts
        ],
    )
