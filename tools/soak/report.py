"""The slopes of a soak as a table, and its samples as one page with charts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from rich.table import Table

from spark_streams.operations.console.charts import Chart, charts_of
from spark_streams.operations.console.site import environment
from tools.soak.slope import WARM, Slope, fit

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
