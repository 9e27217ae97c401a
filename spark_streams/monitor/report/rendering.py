"""The report's templates, rendered by Jinja.

Other clients choose the names of streams and the reasons of dead letters, so every value is escaped. Only the output of
our own templates is inserted unchanged.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spark_streams.monitor.terminal.units import count, duration

MAX_ROWS = 200  # of a table; the number of further rows is shown


def _idle(ms: int | None) -> str:
    return "–" if ms is None else duration(ms)


_templates = Environment(
    loader=PackageLoader("spark_streams.monitor.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_templates.filters.update(count=count, duration=duration, idle=_idle)
_templates.globals["MAX_ROWS"] = MAX_ROWS


def render(template: str, **values: object) -> Markup:
    """Return the markup of a template with these values."""
    return Markup(_templates.get_template(template).render(values))
