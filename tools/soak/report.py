"""What is measured each minute of a soak, the slopes of the figures, their page, and what became of every entry."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import redis
from rich.table import Table

from spark_streams.connector.lag.survey import GroupLag, survey
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.session import Session
from spark_streams.operations.console.charts import Chart, charts_of
from spark_streams.operations.console.site import environment
from spark_streams.operations.verify.judge import Fault, Judgement
from tools.once import once
from tools.soak.job_process import ARCHIVE, CLAIMED, DEAD, ETL, STREAM, JobProcess

# -- what is measured each minute --------------------------------------------------------------------------------------


_KIB = 1024
_MIB = 1_048_576


def measure(url: str, client: redis.Redis, jobs: Iterable[JobProcess], folder: Path) -> dict[str, float]:
    """Return the figures by name. Memory is in MB; a job without a living process has none."""
    figures: dict[str, float] = {}
    for job in jobs:
        figures |= {f"{job.name}: {name}": value for name, value in _of_processes(job.processes()).items()}
        figures[f"{job.name}: checkpoint files"] = _files(folder / "checkpoints" / job.name)
    figures |= _of_server(url, client)
    figures["table: data files"] = len(list((folder / "table").glob("*.parquet")))
    figures["table: log files"] = _files(folder / "table" / "_delta_log")
    figures["archive: files"] = _files(folder / "archive")
    return figures


def _of_processes(processes: Mapping[int, str]) -> dict[str, float]:
    figures: dict[str, float] = defaultdict(float)
    for pid, kind in processes.items():
        try:
            figures[f"{kind} memory MB"] += _proportional_memory(pid)
            figures["threads"] += len(os.listdir(f"/proc/{pid}/task"))
            figures["file handles"] += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:  # it has ended
            continue
        if kind == "jvm":
            heap = _live_heap(pid)
            if heap is not None:
                figures["jvm live heap MB"] = heap
    return dict(figures)


def _proportional_memory(pid: int) -> float:
    """Return its share of memory in MB: pages that forked processes have in common are shared out among them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / _KIB
    raise OSError(f"process {pid} has no Pss")


def _live_heap(pid: int) -> float | None:
    """Return what a full collection leaves of the heap, in MB. None: the process ends, or does not answer."""
    command = ["jcmd", str(pid), "GC.class_histogram"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    words = answer.stdout.splitlines()[-1].split() if answer.stdout else []
    return int(words[2]) / _MIB if len(words) == 3 and words[0] == "Total" else None


def _of_server(url: str, client: redis.Redis) -> dict[str, float]:
    memory: Any = client.info("memory")
    figures: dict[str, float] = {
        "server: memory MB": memory["used_memory"] / _MIB,
        "server: resident MB": memory["used_memory_rss"] / _MIB,
        "server: keys": float(client.dbsize()),
        "server: clients": float(client.info("clients")["connected_clients"]),
        "stream: entries": float(client.xlen(STREAM)),
        "dead letters": float(client.xlen(DEAD)),
    }
    for group in groups_of(url):
        figures[f"{group.group}: pending"] = group.pending
        figures[f"{group.group}: consumers"] = len(group.consumers)
        figures[f"{group.group}: lag"] = group.lag
    return figures


def groups_of(url: str) -> Sequence[GroupLag]:
    """Return both groups. Redis' own lag is wrong after a kill of the server (docs/internals/facts.md, R90)."""
    with Session(Address.parse(url)) as session:
        return survey(session.get(), [STREAM]).groups


def _files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


# -- the slope of a figure ---------------------------------------------------------------------------------------------


WARM = 600.0  # seconds of a life that are left out
LARGEST = 0.05  # growth in an hour, as a share of the mean, that still counts as flat …
_SURE = 3.0  # … or a slope below so many of its standard errors


@dataclass(frozen=True)
class Slope:
    """The fitted line of a figure."""

    samples: int
    mean: float  # of all samples
    per_hour: float  # growth
    error: float  # standard error of the growth

    @property
    def is_flat(self) -> bool:
        """Whether it grows by less than LARGEST of its mean in an hour, or less than the samples can tell."""
        return self.per_hour <= max(LARGEST * abs(self.mean), _SURE * self.error)


def fit(lives: Mapping[int, Sequence[tuple[float, float]]]) -> Slope | None:
    """Return the line through all lives. lives: number of a life → (seconds, value). None: too few samples."""
    parts = [np.array(points, dtype=np.float64).T for points in lives.values() if len(points) > 1]
    if not parts:
        return None
    x = np.concatenate([times - times.mean() for times, _ in parts]) / 3600
    y = np.concatenate([values - values.mean() for _, values in parts])
    free, spread = len(x) - len(parts) - 1, float(x @ x)
    if free < 1 or spread == 0:
        return None
    per_hour = float(x @ y) / spread
    rest = y - per_hour * x
    # Samples that follow one another are not independent: a step of the figure lasts for several of them.
    error = float(np.sqrt(rest @ rest / free / spread * _dependence(rest)))
    mean = float(np.concatenate([values for _, values in parts]).mean())
    return Slope(len(x), mean, per_hour, error)


def _dependence(rest: np.ndarray) -> float:
    """Return the factor of the variance of a slope for neighbours with the correlation r: (1 + r) / (1 − r)."""
    power = float(rest @ rest)
    if power == 0:
        return 1.0
    r = min(0.95, max(0.0, float(rest[1:] @ rest[:-1]) / power))
    return (1 + r) / (1 - r)


# -- the page ----------------------------------------------------------------------------------------------------------


# They grow with what was written: tables and archives keep their rows, and Delta keeps its log for 30 days.
GROWING = frozenset({"table: log files", "archive: files"})
# Until the table's first files are old enough to be deleted: table.keep, and a compaction.
_WARM = {"table: data files": 4200.0}
_CHARTS = (
    ("Memory of the job etl, MB", "etl: ", " MB"),
    ("Memory of the job archive, MB", "archive: ", " MB"),
    ("Memory of the server, MB", "server: ", " MB"),
    ("Threads and file handles", "", ("threads", "file handles")),
    ("Keys, clients and consumers", "", ("keys", "clients", "consumers")),
    ("Files", "", " files"),
    ("Entries in the stream", "stream: ", "entries"),
    ("Lag", "", ": lag"),
    ("Pending entries and dead letters", "", (": pending", "dead letters")),
)
_PAGE = """\
{% from "charts.html" import charts with context %}
<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Soak</title><style>{{ style | safe }}</style><main><h1>{{ title }}</h1><pre>{{ verdict }}</pre>
{{ charts(drawn, began, ended) }}</main></html>
"""


@dataclass(frozen=True)
class Sample:
    """Figures at one moment. at: seconds since the begin; lives: job → number of its life, and its age in seconds."""

    at: float
    figures: Mapping[str, float]
    lives: Mapping[str, tuple[int, float]]


def slopes(samples: Sequence[Sample]) -> dict[str, Slope]:
    """Return the slope of each figure that has enough samples."""
    names = dict.fromkeys(name for sample in samples for name in sample.figures)
    fitted = {name: fit(_lives(name, samples)) for name in names}
    return {name: slope for name, slope in fitted.items() if slope is not None}


def not_flat(fitted: Mapping[str, Slope]) -> list[str]:
    """Return the names of what must be flat and is not."""
    return [name for name, slope in fitted.items() if name not in GROWING and not slope.is_flat]


def table(fitted: Mapping[str, Slope]) -> Table:
    """Return the table of slopes."""
    shown = Table("figure", box=None, header_style="bold")
    for head in ("samples", "mean", "growth an hour", "± error", ""):
        shown.add_column(head, justify="right" if head else "left")
    for name, slope in fitted.items():
        word = "grows with what is written" if name in GROWING else "flat" if slope.is_flat else "NOT FLAT"
        shown.add_row(
            name, str(slope.samples), f"{slope.mean:,.1f}", f"{slope.per_hour:+,.2f}", f"{slope.error:,.2f}", word
        )
    return shown


def page(samples: Sequence[Sample], title: str, verdict: str, began: float) -> str:
    """Return the page. began: seconds since the epoch."""
    start = round(began * 1000)
    ended = start + round(1000 * samples[-1].at) if samples else start
    style = files("spark_streams.operations.console").joinpath("static/console.css").read_text()
    template = environment().from_string(_PAGE)
    return template.render(
        title=title, verdict=verdict, style=style, drawn=list(_charts(samples, start)), began=start, ended=ended
    )


def write_page(path: Path, samples: Sequence[Sample], title: str, verdict: str, began: float) -> None:
    """Write the page. A reader never sees a part of it."""
    draft = path.with_suffix(f".{time.monotonic_ns()}")
    draft.write_text(page(samples, title, verdict, began))
    draft.replace(path)


def _lives(name: str, samples: Sequence[Sample]) -> dict[int, list[tuple[float, float]]]:
    """Return the samples of a figure by life. Those of no job have one life: the soak."""
    job = name.partition(": ")[0]
    lives: dict[int, list[tuple[float, float]]] = {}
    for sample in samples:
        number, age = sample.lives.get(job, (0, sample.at))
        if name in sample.figures and age >= _WARM.get(name, WARM):
            lives.setdefault(number, []).append((sample.at, sample.figures[name]))
    return lives


def _charts(samples: Sequence[Sample], start: int) -> Iterator[Chart]:
    names = dict.fromkeys(name for sample in samples for name in sample.figures)
    for title, head, ends in _CHARTS:
        chosen = [name for name in names if name.startswith(head) and name.endswith(ends)]
        points = {
            name: [(start + round(1000 * sample.at), sample.figures.get(name)) for sample in samples] for name in chosen
        }
        yield from charts_of((title, "entries", points))


# -- what became of every entry ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """Counts of entries."""

    added: int  # numbers by the producer
    rows: int  # of the table
    lost: int
    twice: int
    claimed: int  # twice since another consumer has claimed them while they were written
    entries: int  # of the stream, with those that redrives have added
    not_archived: int
    archived_twice: int
    left: int  # pending entries and dead letters

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, twice or left."""
        return not any((self.lost, self.twice, self.not_archived, self.archived_twice, self.left))

    def __str__(self) -> str:
        return (
            f"{self.added:,} numbers added · {self.rows:,} rows in the table: lost {self.lost} · twice {self.twice} · "
            f"twice by a claim {self.claimed}\n"
            f"{self.entries:,} entries in the stream with redriven ones: not archived {self.not_archived} · "
            f"archived twice {self.archived_twice}\n"
            f"pending or dead at the end: {self.left}"
        )


def judge(client: redis.Redis, folder: Path, added: int) -> Verdict:
    """Compare table and archive with what was added. Both jobs have ended."""
    from deltalake import DeltaTable

    numbers = DeltaTable(folder / "table").to_pyarrow_dataset().to_table(columns=["number"]).column("number")
    claims: Any = client.hgetall(CLAIMED)
    allowed = {int(number): 1 + int(times) for number, times in claims.items()}
    once_each, claimed = _without_claimed(np.asarray(numbers), allowed)
    table = _judged(once_each, added)
    archived = ds.dataset(folder / "archive", partitioning="hive", format="parquet").to_table(columns=["id"])
    ids = np.asarray(archived.column("id").cast("string"), dtype="U40")
    entries = int(client.xinfo_stream(STREAM)["entries-added"])
    # Nobody knows the IDs of those that are trimmed: the first ID is number 0, and so on.
    archive = _judged(np.unique(ids, return_inverse=True)[1], entries)
    pending = sum(int(client.xpending(STREAM, group)["pending"]) for group in (ETL, ARCHIVE))
    left = pending + int(client.xlen(DEAD))
    return Verdict(added, len(numbers), *_counts(table), claimed, entries, *_counts(archive), left)


def _without_claimed(found: np.ndarray, allowed: Mapping[int, int]) -> tuple[np.ndarray, int]:
    """Leave out what comes again after a claim. allowed: number → how often it may be there. Return the rest, and how
    many numbers come again."""
    distinct, times = np.unique(found, return_counts=True)
    again = [at for at in np.flatnonzero(times > 1) if times[at] <= allowed.get(int(distinct[at]), 1)]
    times[again] = 1
    return np.repeat(distinct, times), len(again)


def _judged(found: np.ndarray, added: int) -> Judgement:
    """Judge the numbers 0, 1, … that were found. Of millions, the judge gets those that are not there once."""
    distinct, times = np.unique(found, return_counts=True)
    sent = np.arange(added)
    lost, odd = np.setdiff1d(sent, distinct), distinct[(times > 1) | ~np.isin(distinct, sent)]
    return once([*lost.tolist(), *np.intersect1d(odd, sent).tolist()], found[np.isin(found, odd)].tolist())


def _counts(judgement: Judgement) -> tuple[int, int]:
    """Return how many are lost, and how many are there twice or were not added."""
    found = judgement.found
    return len(found.get(Fault.LOST, ())), sum(len(found.get(fault, ())) for fault in (Fault.TWICE, Fault.PHANTOM))
