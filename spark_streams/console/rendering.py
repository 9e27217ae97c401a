"""The templates of the pages, and what they call.

Other clients choose the names of streams and the reasons of dead letters, so every value is escaped.
"""

from __future__ import annotations

import glob
import time

from jinja2 import Environment, PackageLoader, StrictUndefined

from spark_streams.console.bounds import LONG_TEXT, NAME_BYTES
from spark_streams.console.charts.charts import drawing, sparkline
from spark_streams.console.json_filter import LONGEST
from spark_streams.console.request.parameters import fixed, link
from spark_streams.model.counters import with_heading
from spark_streams.model.times import from_milliseconds
from spark_streams.monitor.terminal.units import count, counted, duration, rate, size

MAX_ROWS = 200  # of a table; the number of further rows is shown


def environment() -> Environment:
    """Return the environment of the templates."""
    templates = Environment(
        loader=PackageLoader("spark_streams.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(
        count=count, duration=duration, idle=_idle, rate=rate, counted=counted, bytes=size, clock=_clock, since=_since
    )
    templates.globals.update(
        MAX_ROWS=MAX_ROWS,
        NAME_BYTES=NAME_BYTES,
        LONG_TEXT=LONG_TEXT,
        LONGEST=LONGEST,
        link=link,
        glob_escape=glob.escape,
        fixed=fixed,
        counters=with_heading,
        counter_heads=_counter_heads,
        drawing=drawing,
        sparkline=sparkline,
    )
    return templates


def _counter_heads() -> list[str]:
    return [f"#{counter.heading}" for counter in with_heading()]


def _idle(ms: int | None) -> str:
    return "–" if ms is None else duration(ms)


def _clock(at_ms: float) -> str:
    return from_milliseconds(round(at_ms)).strftime("%Y-%m-%d %H:%M:%S")


def _since(at_ms: float) -> str:
    return duration(max(0, time.time() * 1000 - at_ms))
