"""The templates of the pages, and what they call.

Other clients choose the names of streams and the reasons of dead letters, so every value is escaped.
"""

from __future__ import annotations

import time

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spark_streams.base.times import from_milliseconds, moment
from spark_streams.base.units import count, counted, duration, rate, size
from spark_streams.connector.counters import with_heading
from spark_streams.connector.lag.margin import Margin
from spark_streams.operations.console.bounds import LONG_TEXT, NAME_BYTES
from spark_streams.operations.console.charts.charts import drawing, sparkline
from spark_streams.operations.console.json_filter import LONGEST
from spark_streams.operations.console.request.parameters import fixed, link

MAX_ROWS = 200  # of a table; the number of further rows is shown


def environment() -> Environment:
    """Return the environment of the templates."""
    templates = Environment(
        loader=PackageLoader("spark_streams.operations.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(
        count=count, duration=duration, idle=_idle, rate=rate, counted=counted, bytes=size, clock=_clock, since=_since
    )
    templates.filters["margin"] = _margin
    templates.globals.update(
        MAX_ROWS=MAX_ROWS,
        NAME_BYTES=NAME_BYTES,
        LONG_TEXT=LONG_TEXT,
        LONGEST=LONGEST,
        link=link,
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


def _margin(margin: Margin | None) -> str:
    return "unknown" if margin is None or margin.seconds is None else str(margin)


def _clock(at: float | str) -> str:
    """Return a time, of which the script knows the local one; a text that is no time is returned as it is."""
    try:
        time_of = from_milliseconds(moment(at) if isinstance(at, str) else round(at))
    except (ValueError, OverflowError):
        return str(at)
    utc = time_of.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}Z">{}</time>').format(utc.replace(" ", "T"), utc)


def _since(at_ms: float) -> str:
    return duration(max(0, time.time() * 1000 - at_ms))
