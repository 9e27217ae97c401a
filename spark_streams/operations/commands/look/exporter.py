"""`rstream exporter`: serve metrics of all streams and groups of a server for Prometheus."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import click

from spark_streams.operations.commands.shared import (
    address_of,
    max_streams_option,
    milliseconds,
    port_option,
    url_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PORT = 9405


@click.command(short_help="Serve metrics of all streams and groups for Prometheus.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@port_option(PORT)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0: all.")
@click.option(
    "--every",
    "interval_ms",
    metavar="TIME",
    default="3s",
    show_default=True,
    callback=milliseconds,
    help="Maximum age of a snapshot. Scrapes within this time share it.",
)
@click.option(
    "--time-limit",
    metavar="TIME",
    default="8s",
    show_default=True,
    callback=milliseconds,
    help="Maximum time for a snapshot. It must be less than Prometheus' scrape_timeout.",
)
@max_streams_option
@click.option(
    "--max-groups",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Maximum number of groups of all streams together.",
)
@click.option("--once", is_flag=True, help="Print the metrics once and stop. Exit code 1: the server does not answer.")
@url_option
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
    server does not answer, rstream_server_up is 0 and the other metrics are missing; the exporter keeps running.
    Nothing on the server changes. Ctrl-C and SIGTERM end the exporter with exit code 0.

    `rstream init alerts` and `rstream init grafana` write alert rules and a dashboard for these metrics.

    \b
    Examples:
      rstream exporter
      rstream exporter orders 'payments-*' --host 0.0.0.0 --port 9405
      rstream exporter --once | grep lag_seconds
    """  # fmt: skip
    from spark_streams.base.printable import printable
    from spark_streams.connector.watch.metrics_page import MetricsPage
    from spark_streams.operations.monitor.exporter.dead_letters import SECONDS
    from spark_streams.operations.monitor.exporter.metrics import Collector
    from spark_streams.operations.monitor.exporter.snapshot_cache import SnapshotCache
    from spark_streams.operations.monitor.exporter.stream_filter import StreamFilter

    def tell(line: str) -> None:
        click.echo(printable(line), err=True)

    address = address_of(url)
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
    page = MetricsPage(Collector(snapshots), None if once else port, host)
    try:
        if once:
            # The same bytes as over HTTP, in any locale. Labels are printable.
            click.echo(page.text().encode(), nl=False)
            if snapshots.failure is not None:
                raise click.exceptions.Exit(1)
        else:
            _wait_for_signal(lambda: tell(f"metrics of {address} at http://{host}:{page.port}/metrics"))
    finally:
        page.close()
        snapshots.close()


def _wait_for_signal(begin: Callable[[], None]) -> None:
    """Call `begin`, and wait for SIGINT or SIGTERM."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        begin()
        stop.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
