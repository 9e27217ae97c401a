"""Templates of pages, rendered by Jinja.

Other clients choose the names of streams and the reasons of dead letters, so every value is escaped. Only the output of
our own templates is inserted unchanged.
"""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spark_streams.model.counters import with_heading
from spark_streams.monitor.terminal.units import count, duration

PACKAGE = "spark_streams.console.report"
MAX_ROWS = 200  # of a table; the number of further rows is shown


def _idle(ms: int | None) -> str:
    return "–" if ms is None else duration(ms)


def _counter_heads() -> list[str]:
    return [f"#{counter.heading}" for counter in with_heading()]


def environment(*packages: str) -> Environment:
    """Return the environment of the templates in these packages, each in its folder `templates`."""
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(count=count, duration=duration, idle=_idle)
    templates.globals.update(MAX_ROWS=MAX_ROWS, counters=with_heading, counter_heads=_counter_heads)
    return templates


_templates = environment(PACKAGE)


def render(template: str, **values: object) -> Markup:
    """Return the markup of a template with these values."""
    return Markup(_templates.get_template(template).render(values))
