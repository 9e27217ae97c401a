"""The report's templates, rendered by Jinja.

Whoever writes entries chooses the names of streams and the reasons of dead letters, so every value is escaped; only
what a template of ours has rendered goes in as it is.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spark_streams.monitor.terminal.units import count, duration

MOST_ROWS = 200  # of a table; what stands behind is told by its number


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
_templates.globals["MOST_ROWS"] = MOST_ROWS


def render(template: str, **values: object) -> Markup:
    """The markup that a template makes of these values."""
    return Markup(_templates.get_template(template).render(values))
