"""`rstream report`: write an HTML page about a server, or about a log of the query listener."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_streams.commands.names import named_streams
from spark_streams.commands.shared import address_of, connect, milliseconds, output_option, url_option
from spark_streams.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_streams.monitor.report.report import DeadLetterRow, Report
    from spark_streams.wire.connection.server import Server


@click.command(short_help="Write an HTML page from a server or a log.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--group", help="Only this group.")
@click.option("--for", "lasts", metavar="TIME", callback=milliseconds, help="Observe the server for this time (60s).")
@click.option(
    "--every",
    "interval_ms",
    metavar="TIME",
    default="1s",
    show_default=True,
    callback=milliseconds,
    help="With --for: interval between two snapshots.",
)
@click.option("--log", type=click.Path(dir_okay=False), help="Read a log of spark_streams.watch instead of a server.")
@output_option("The file to write; - for standard output.", "rstream-report.html")
@url_option
def report(
    names: tuple[str, ...],
    group: str | None,
    lasts: int | None,
    interval_ms: int,
    log: str | None,
    output: str,
    url: str,
) -> None:
    """Write an HTML page: the lag of each group, pending entries per consumer, dead letters by reason.

    By default the page shows the state of the server now. --for adds lag and throughput over that time. --log reads
    lines that spark_streams.watch wrote, and shows the progress of the queries. The page is a single file and needs no
    network. Nothing on the server changes.

    \b
    Examples:
      rstream report
      rstream report orders --for 60s -o orders.html
      rstream report --log /var/log/billing.jsonl
    """
    from spark_streams.monitor.report.html import page
    from spark_streams.monitor.terminal.units import counted

    if log is not None and lasts is not None:
        raise click.UsageError("--for observes a server, and --log reads a file; use only one of them")
    report = _of_log(log, names, group) if log is not None else _of_server(url, names, group, lasts, interval_ms)
    text = page(report)
    if output == "-":
        click.echo(text, nl=False)  # printable already
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {output}: {error}") from error
    click.echo(f"{output}: {counted(len(report.groups), 'group')}, {len(text) / 1024:,.0f} kB")


def _of_log(path: str, names: tuple[str, ...], group: str | None) -> Report:
    from spark_streams.monitor.report.builders import LogReading
    from spark_streams.monitor.watch.log_lines import read_lines

    reading = LogReading(names, group)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in read_lines(file):
                reading.add(line)
    except OSError as error:
        raise ConfigError(f"the log {path} cannot be read: {error}") from error
    return reading.report(Path(path).name)


def _of_server(url: str, names: tuple[str, ...], group: str | None, lasts: int | None, interval_ms: int) -> Report:
    from dataclasses import replace

    from spark_streams.monitor.lag_survey import survey
    from spark_streams.monitor.report.builders import ServerReading

    reading = ServerReading()
    with connect(url) as server:
        streams = named_streams(server, names)
        began = due = time.monotonic()
        while True:
            snapshot = survey(server, streams)
            if group is not None:
                snapshot = replace(
                    snapshot, groups=tuple(group_lag for group_lag in snapshot.groups if group_lag.group == group)
                )
            reading.add(snapshot)
            remaining = 0.0 if lasts is None else lasts / 1000 - (time.monotonic() - began)
            if remaining <= 0:
                break
            _show_remaining(remaining)
            due += interval_ms / 1000
            time.sleep(max(0.0, min(due - time.monotonic(), remaining)))
        _show_remaining(None)
        dead_letters = list(_dead_letters(url, server))
        return reading.report(str(server.address), dead_letters)


def _dead_letters(url: str, server: Server) -> Iterator[DeadLetterRow]:
    from spark_streams.deadletter.criteria import Criteria
    from spark_streams.deadletter.inspect.listing import count_by_kind, dead_letter_streams
    from spark_streams.monitor.report.report import DeadLetterRow

    for dead in dead_letter_streams(server):
        for kind, counted in count_by_kind(address_of(url), dead.key, Criteria()).counts.items():
            _, stage, reason, error = kind
            yield DeadLetterRow(dead.stream, stage, reason, error, counted.letters)


def _show_remaining(seconds: float | None) -> None:
    """Show the remaining time, on a terminal only. None: clear the line."""
    if sys.stderr.isatty():
        click.echo(
            "\r\x1b[K" if seconds is None else f"\robserving for {seconds:.0f} s more \x1b[K", err=True, nl=False
        )
