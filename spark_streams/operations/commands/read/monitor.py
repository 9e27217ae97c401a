"""`rstream top` and `rstream exporter`: a live board, and metrics for Prometheus."""

from __future__ import annotations

import contextlib
import select
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from spark_streams.base.printable import json_text
from spark_streams.connector.errors import ServerError
from spark_streams.operations.commands import shared
from spark_streams.operations.commands.exit_codes import FAILED, found
from spark_streams.operations.commands.stream_names import named_streams

if TYPE_CHECKING:
    from spark_streams.connector.lag.survey import Survey
    from spark_streams.connector.wire.connection import Server
    from spark_streams.operations.monitor.board import Title
    from spark_streams.operations.monitor.rates import SurveyHistory


# What INFO calls a server's version, and the server's name.
_KINDS = {"rstream": "bundled engine", "valkey": "Valkey", "redis": "Redis"}
_FIND_MS = 10_000  # between two searches for new streams


@click.command(short_help="Show rates and lag of groups, live.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--group", help="Only this group.")
@click.option(
    "--every",
    "interval_ms",
    metavar="TIME",
    default="1s",
    show_default=True,
    callback=shared.milliseconds,
    help="Interval between two snapshots.",
)
@click.option("--for", "lasts", metavar="TIME", callback=shared.milliseconds, help="Stop after this time (5m).")
@click.option(
    "--once",
    is_flag=True,
    help="Print one board, or one line of JSON, and stop. This is the default if the output is not a terminal.",
)
@shared.url_option
@shared.json_option
def top(
    names: tuple[str, ...], group: str | None, interval_ms: int, lasts: int | None, once: bool, url: str, as_json: bool
) -> None:
    """Show live how groups keep up: rates, lag and its trend, consumers. `q` or Ctrl-C ends it.

    \b
    behind    age of the oldest entry that the group has not acknowledged
    oldest    how long the oldest pending entry has been pending
    added/s   entries per second that producers append
    deliv/s   entries per second that are delivered to the group
    acked/s   entries per second that the group acknowledges

    The group that is furthest behind comes first, groups without a read in the last day come last. With --json the
    command prints one line for each snapshot.

    \b
    Examples:
      rstream top orders payments --every 5s
      rstream top --once
      rstream top --json --for 1m > lag.jsonl
    """
    watch = ServerWatch(url, names, group, interval_ms)
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            _print_lines(watch, lasts, once)
        elif once or not sys.stdout.isatty():
            _print_once(watch)
        else:
            _show(watch, lasts)


class ServerWatch:
    """Takes snapshots of a server repeatedly. It connects again if the connection breaks."""

    def __init__(self, url: str, names: tuple[str, ...], group: str | None, interval_ms: int) -> None:
        from spark_streams.connector.wire.replies import info
        from spark_streams.operations.monitor.board import Title
        from spark_streams.operations.monitor.rates import SurveyHistory

        self._url, self._names, self._group = url, names, group
        self.interval = interval_ms / 1000
        self.history: SurveyHistory = SurveyHistory()
        self._server: Server | None = shared.connect(url)
        [reply] = self._server.pipeline([("INFO", "server")])
        # A user with rights for stream commands only may not send INFO.
        server_info = info(reply) if isinstance(reply, bytes) else {}
        kind = next((kind for kind in _KINDS if f"{kind}_version" in server_info), "redis")
        server = f"{_KINDS[kind]} {server_info.get(f'{kind}_version', '?')}"
        self.title: Title = Title(str(self._server.address), server, interval_ms, group=group)
        self._streams = named_streams(self._server, names)
        self._searched_at = time.monotonic()

    def refresh(self) -> None:
        """Take one more snapshot. If the server does not answer, the title shows the error; the first time it raises
        ServerError."""
        try:
            if self._server is None:
                self._server = shared.connect(self._url)
            if not self._names and time.monotonic() - self._searched_at > _FIND_MS / 1000:
                self._streams = named_streams(self._server, ())
                self._searched_at = time.monotonic()
            self.history.add(self._survey(self._server))
        except ServerError as error:
            if not len(self.history):
                raise
            if self._server is not None:
                self._server.close()
            self._server = None
            self.title = replace(self.title, trouble=f"{error.message}; trying again")
        else:
            self.title = replace(self.title, trouble="")

    def _survey(self, server: Server) -> Survey:
        from spark_streams.connector.lag.survey import survey

        snapshot = survey(server, self._streams)
        if self._group is None:
            return snapshot
        return replace(
            snapshot, groups=tuple(group_lag for group_lag in snapshot.groups if group_lag.group == self._group)
        )


def _print_once(watch: ServerWatch) -> None:
    from spark_streams.operations.commands.shared import console
    from spark_streams.operations.monitor.board import Board

    watch.refresh()
    time.sleep(watch.interval)
    watch.refresh()
    console().print(Board(watch.title, watch.history, height=10_000))


def _print_lines(watch: ServerWatch, lasts: int | None, once: bool) -> None:
    from spark_streams.operations.monitor.rates import UNKNOWN

    for _ in _ticks(watch.interval, lasts):
        watch.refresh()
        if watch.title.trouble:
            shared.say(watch.title.trouble, err=True)
            continue
        rates, last = watch.history.rates(), watch.history.last
        groups = []
        for group_lag in last.groups:
            speed = rates.get((group_lag.stream, group_lag.group), UNKNOWN)
            group_rates = {"added_per_s": speed.added, "delivered_per_s": speed.delivered}
            groups.append({**asdict(group_lag), **group_rates, "acknowledged_per_s": speed.acknowledged})
        shared.say(json_text({"at_ms": last.at_ms, "groups": groups}))
        if once:
            return


def _show(watch: ServerWatch, lasts: int | None) -> None:
    from rich.console import Console
    from rich.live import Live

    from spark_streams.operations.monitor.board import Board

    watch.refresh()
    console = Console(emoji=False, highlight=False)
    with (
        _keys() as quits,
        Live(Board(watch.title, watch.history), console=console, screen=True, auto_refresh=False) as live,
    ):
        live.refresh()
        for _ in _ticks(watch.interval, lasts, quits):
            watch.refresh()
            live.update(Board(watch.title, watch.history), refresh=True)


def _ticks(interval: float, lasts: int | None, wait: object = None) -> Iterator[None]:
    """Yield once per interval in seconds, until the time is over or `wait` returns True."""
    pause = wait if callable(wait) else _sleep
    began = due = time.monotonic()
    while lasts is None or time.monotonic() - began < lasts / 1000:
        yield
        due = max(due + interval, time.monotonic())
        if pause(max(0.0, due - time.monotonic())):
            return


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextlib.contextmanager
def _keys() -> Iterator[object]:
    """Yield a function that waits, and returns whether q was pressed. Without a terminal it only waits."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    def wait(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            ready, _, _ = select.select([sys.stdin], [], [], remaining)
            if ready and sys.stdin.read(1) in ("q", "Q", ""):
                return True

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield wait
    finally:
        with contextlib.suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


PORT = 9405


@click.command(short_help="Serve metrics of all streams and groups for Prometheus.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@shared.port_option(PORT)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0: all.")
@click.option(
    "--every",
    "interval_ms",
    metavar="TIME",
    default="3s",
    show_default=True,
    callback=shared.milliseconds,
    help="Maximum age of a snapshot. Scrapes within this time share it.",
)
@click.option(
    "--time-limit",
    metavar="TIME",
    default="8s",
    show_default=True,
    callback=shared.milliseconds,
    help="Maximum time for a snapshot. It must be less than Prometheus' scrape_timeout.",
)
@shared.max_streams_option
@click.option(
    "--max-groups",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Maximum number of groups of all streams together.",
)
@click.option("--once", is_flag=True, help="Print the metrics once and stop. Exit code 1: the server does not answer.")
@shared.url_option
def exporter(
    names: tuple[str, ...],
    port: int,
    host: str,
    interval_ms: int,
    time_limit: int,
    max_streams: int,
    max_groups: int,
    once: bool,
    url: str,
) -> None:
    """Serve metrics at http://HOST:PORT/metrics: lag, pending entries, consumers, length and memory of all streams,
    dead letters by reason. No query needs to run.

    STREAM is a name, or a pattern with * ? []; default: all streams. A scrape takes a snapshot of the server. While the
    server does not answer, rstream_server_up is 0, and other metrics are missing. Ctrl-C and SIGTERM end the exporter
    with exit code 0.

    `rstream init alerts` and `rstream init grafana` write rules and a dashboard for them.

    \b
    Examples:
      rstream exporter orders 'payments-*' --host 0.0.0.0 --port 9405
      rstream exporter --once | grep lag_seconds
    """  # fmt: skip
    from spark_streams.connector.watch.metrics_page import MetricsPage
    from spark_streams.operations.monitor.exported_metrics import ExportedMetrics
    from spark_streams.operations.monitor.snapshots import SECONDS, SnapshotCache, StreamFilter

    tell = partial(shared.say, err=True)
    address = shared.address_of(url)
    limit = time_limit / 1000
    snapshots = SnapshotCache(
        address,
        StreamFilter(names, max_streams),
        interval_ms / 1000,
        limit,
        tell,
        limit if once else SECONDS,
        max_groups=max_groups,
    )
    page = MetricsPage(ExportedMetrics(snapshots), None if once else port, host)
    try:
        if once:
            # The same bytes as over HTTP, in any locale. Labels are printable.
            metrics = page.text().encode()
            if snapshots.failure is not None:
                found(FAILED)
            click.echo(metrics, nl=False)
        else:
            stop = threading.Event()
            with shared.on_signals(lambda *_: stop.set()):
                tell(f"metrics of {address} at http://{f'[{host}]' if ':' in host else host}:{page.port}/metrics")
                stop.wait()
    finally:
        page.close()
        snapshots.close()
