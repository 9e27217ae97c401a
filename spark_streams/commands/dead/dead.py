"""`rstream dead …`: dead letters listed, shown, exported, purged. Their way back is in redrive.py."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Unpack

import click

from spark_streams.commands.dead.criteria import Chosen, criteria_of, criteria_options, progress, say_none_is_meant
from spark_streams.commands.dead.redrive import redrive
from spark_streams.commands.entry import age, no_such_entry, parse_id, print_entry
from spark_streams.commands.shared import (
    address_of,
    connect,
    json_option,
    output_option,
    print_json,
    print_table,
    say,
    url_option,
)
from spark_streams.errors import ConfigError, StreamStateError
from spark_streams.model.printable import printable
from spark_streams.monitor.terminal.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_streams.deadletter.kind_counts import KindCounts
    from spark_streams.deadletter.retry.waiting_entries import WaitingEntries
    from spark_streams.wire.connection.server import Server


@click.group(short_help="Dead letters: list, send back, delete.")
def dead() -> None:
    """Entries that could not be processed: look at them, send them back, or delete them.

    Texts of --stream, --reason, --stage and --error may hold * ? and [], as in file names. An option that is given
    several times means any of its values; all options together must hold.

    \b
    Examples:
      rstream dead list                                  which streams hold dead letters
      rstream dead list orders:dead                      how many of which kind
      rstream dead show orders:dead --reason 'decode*'   what is in them
      rstream dead redrive orders:dead --dry-run         what would go where
      rstream dead redrive orders:dead --rate 2000
    """


@dead.command("list")
@click.argument("stream", required=False)
@criteria_options
@url_option
@json_option
def list_(stream: str | None, url: str, as_json: bool, **chosen: Unpack[Chosen]) -> None:
    """The streams that hold dead letters, and what waits for another try; or the dead letters of one STREAM, counted by
    kind."""
    from spark_streams.deadletter.inspect.listing import count_by_kind, look

    if stream is None:
        if any(value not in (None, ()) for value in chosen.values()):
            raise click.UsageError("a choice of dead letters goes with one STREAM")
        with connect(url) as server:
            found, waiting = look(server)
        if as_json:
            print_json([*[one.facts() for one in found], *map(asdict, waiting)])
            return
        print_table(
            ("stream", "dead letters", "oldest ", "newest "),
            [(one.stream, one.letters, age(one.oldest), age(one.newest)) for one in found],
        )
        if waiting:
            _print_waiting(waiting)
        return
    address, criteria = address_of(url), criteria_of(chosen)
    with progress("list", quiet=as_json) as tell:
        counts = count_by_kind(address, stream, criteria, tell)
    if as_json:
        print_json(_kinds(counts))
    elif counts.letters:
        _print_kinds(counts)
    if not counts.letters:
        say_none_is_meant(address, stream, criteria, as_json)


@dead.command()
@click.argument("stream")
@click.argument("entry", metavar="[ID]", required=False)
@click.option("--limit", type=click.IntRange(1), default=10, show_default=True, help="So many, oldest first.")
@criteria_options
@url_option
@json_option
def show(stream: str, entry: str | None, limit: int, url: str, as_json: bool, **chosen: Unpack[Chosen]) -> None:
    """Dead letters of STREAM with all that they hold: the entry's own fields, and why it is dead. ID: only this one."""
    from spark_streams.deadletter.envelope import PREFIX, raw
    from spark_streams.deadletter.inspect.export import as_json as object_of
    from spark_streams.deadletter.inspect.listing import each_dead_letter

    if entry is not None:
        if chosen["first"] or chosen["last"]:
            raise click.UsageError("an ID is one dead letter: --first-id and --last-id go without it")
        chosen["first"] = chosen["last"] = entry
    address, criteria = address_of(url), criteria_of(chosen)
    shown: list[dict[str, object]] = []
    for dead_letter in each_dead_letter(address, stream, criteria, limit):
        if not as_json:
            click.echo("", nl=bool(shown))
            told = [(PREFIX + name, value) for name, value in dead_letter.envelope.items() if value]
            pairs = [(raw(name), raw(value)) for name, value in [*dead_letter.pairs, *told]]
            print_entry("dead letter", dead_letter.id, pairs)
        shown.append(object_of(dead_letter))
    if not shown and entry is not None:
        with connect(url) as server:
            raise _no_such_dead_letter(server, stream, entry)
    if as_json:
        print_json(shown)
    if not shown:
        say_none_is_meant(address, stream, criteria, as_json)


@dead.command()
@click.argument("stream")
@output_option("The file to write; - for standard output.", "-")
@click.option("--limit", type=click.IntRange(1), help="So many dead letters at most, oldest first.")
@criteria_options
@url_option
def export(stream: str, output: str, limit: int | None, url: str, **chosen: Unpack[Chosen]) -> None:
    """Dead letters of STREAM as JSON lines: id, envelope, fields.

    A text that is no UTF-8 is written as {"base64": "…"}. Where a field's name is no UTF-8 or comes twice, `fields` is
    a list of [name, value] instead of an object. Nothing is deleted.
    """
    from spark_streams.deadletter.inspect.export import as_line
    from spark_streams.deadletter.inspect.listing import each_dead_letter

    address, criteria = address_of(url), criteria_of(chosen)
    written = 0
    try:
        with click.open_file(output, "w", encoding="utf-8") as file:
            for dead_letter in each_dead_letter(address, stream, criteria, limit):
                file.write(as_line(dead_letter) + "\n")
                written += 1
    except BrokenPipeError:  # of standard output: click ends quietly
        raise
    except OSError as error:
        raise ConfigError(f"the dead letters cannot be written to {output}: {error}") from error
    if output != "-":
        say(f"{counted(written, 'dead letter')} of {stream} written to {output}", err=True)
    if not written:
        say_none_is_meant(address, stream, criteria, for_program=True)


@dead.command()
@click.argument("stream")
@click.option("--limit", type=click.IntRange(1), help="So many dead letters at most, oldest first.")
@click.option("--dry-run", is_flag=True, help="Only count what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@criteria_options
@url_option
@json_option
def purge(
    stream: str, limit: int | None, dry_run: bool, yes: bool, url: str, as_json: bool, **chosen: Unpack[Chosen]
) -> None:
    """Delete dead letters of STREAM for good. Entries that are no dead letters stay."""
    from spark_streams.deadletter.redrive.purge import purge as delete

    address, criteria = address_of(url, starts=not dry_run), criteria_of(chosen)
    if not (yes or dry_run):
        if as_json or not is_terminal():
            raise click.UsageError("nobody can be asked here: give --yes, or --dry-run")
        with progress("count") as tell:
            planned = delete(address, stream, criteria, limit, True, lambda done: tell(done.looked_at, done.total))
        if not planned.deleted:
            say_none_is_meant(address, stream, criteria)
            return
        _print_kinds(planned.counts)
        click.confirm(f"Delete {counted(planned.deleted, 'dead letter')} of {printable(stream)}?", abort=True)
    with progress("purge", quiet=as_json) as tell:
        done = delete(address, stream, criteria, limit, dry_run, lambda done: tell(done.looked_at, done.total))
    if as_json:
        print_json({"stream": stream, "dry_run": dry_run, "deleted": done.deleted, "by": _kinds(done.counts)})
    else:
        if dry_run and done.deleted:
            _print_kinds(done.counts)
        say(f"{'would delete' if dry_run else 'deleted'} {counted(done.deleted, 'dead letter')} of {stream}")
    if not done.counts.letters:
        say_none_is_meant(address, stream, criteria, as_json)


def is_terminal() -> bool:
    """Whether there is somebody who can answer."""
    return sys.stdin.isatty()


def _no_such_dead_letter(server: Server, stream: str, entry: str) -> StreamStateError:
    if not server.execute("XRANGE", stream, *map(bytes, parse_id(entry)), "COUNT", 1):
        return no_such_entry(server, stream, entry)
    return StreamStateError(
        f"entry {entry} of stream {stream!r} is no dead letter, or not one that the other options mean; "
        f"rstream show {stream} {entry} shows it"
    )


def _print_waiting(waiting: list[WaitingEntries]) -> None:
    from spark_streams.monitor.terminal.units import duration

    print_table(
        ("waits for another try in", "entries", "of stream", "group", "next try", "first one due"),
        [
            (one.waits_in, one.entries, one.stream, one.group, one.attempt or "-", _due(one, duration))
            for one in waiting
        ],
    )


def _due(one: WaitingEntries, duration: Callable[[float], str]) -> str:
    """Until when the first one waits."""
    if one.attempt is None:
        return "has come back"
    if one.due_in is None:
        return "no query has retryDelay"
    return f"in {duration(one.due_in)}" if one.due_in else "now"


def _kinds(counts: KindCounts) -> list[dict[str, object]]:
    from spark_streams.deadletter.page import KIND

    return [{**dict(zip(KIND, kind, strict=True)), **asdict(count)} for kind, count in counts]


def _print_kinds(counts: KindCounts) -> None:
    with_error = any(error for (_, _, _, error), _ in counts)
    print_table(
        ("reason", "stage", *(["error"] if with_error else []), "of stream", "dead letters", "oldest ", "newest "),
        [
            (
                *(reason, stage, *([error or "-"] if with_error else []), stream),
                *(count.letters, age(count.first), age(count.last)),
            )
            for (stream, stage, reason, error), count in counts
        ],
    )


dead.add_command(redrive)
