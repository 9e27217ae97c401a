"""Tables for notebooks, which `Watch.lag()` and `Watch.queries()` return. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from spark_streams.base.printable import printable
from spark_streams.base.units import count, duration, rate
from spark_streams.connector import counters
from spark_streams.connector.counters import Counts
from spark_streams.connector.lag.survey import GroupLag
from spark_streams.connector.watch.progress import WatchedQuery

# The colours are the notebook's own, so the table is readable in a light and in a dark theme.
_TABLE = "border-collapse: collapse; color: inherit; background: transparent"
_CAPTION = "caption-side: top; text-align: left; color: inherit; font-weight: bold"
_CELL = "padding: 0.2em 0.8em; text-align: {align}; color: inherit; background: transparent"
_HEAD = _CELL + "; border-bottom: 1px solid currentColor"


@dataclass(frozen=True)
class NotebookTable:
    """A table that a notebook draws and that any other Python prints as text.

    columns: their names; a name that ends with a blank has its values on the right. rows: the text of each cell.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def _repr_html_(self) -> str:
        """Return the table as HTML. Names and values come from other clients and are escaped."""
        lines = [f'<table style="{_TABLE}">', f'<caption style="{_CAPTION}">{_safe(self.title)}</caption>']
        lines += ["<thead>", self._row("th", _HEAD, self.columns), "</thead>", "<tbody>"]
        lines += [self._row("td", _CELL, row) for row in self.rows]
        return "\n".join([*lines, "</tbody>", "</table>"])

    def __repr__(self) -> str:
        cells = [[printable(cell).strip() for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if name.endswith(" ") else cell.ljust(width)
                for cell, width, name in zip(row, widths, self.columns, strict=True)
            ).rstrip()
            for row in cells
        ]
        return "\n".join([printable(self.title), *lines])

    def _row(self, tag: str, style: str, cells: Iterable[str]) -> str:
        cells_text = (
            f'<{tag} style="{style.format(align="right" if name.endswith(" ") else "left")}">{_safe(cell)}</{tag}>'
            for name, cell in zip(self.columns, cells, strict=True)
        )
        return f"<tr>{''.join(cells_text)}</tr>"


def lag_table(groups: Iterable[GroupLag]) -> NotebookTable:
    """Return the lag of each group, in the order of streams and groups."""
    rows = tuple(
        (
            group.stream,
            group.group,
            count(group.lag, group.at_least),
            duration(group.lag_ms),
            count(group.pending),
            "-" if group.oldest_idle_ms is None else duration(group.oldest_idle_ms),
        )
        for group in sorted(groups, key=lambda group: (group.stream, group.group))
    )
    return NotebookTable("Lag", ("stream", "group", "lag ", "behind ", "pending ", "oldest pending "), rows)


def query_table(queries: Iterable[WatchedQuery]) -> NotebookTable:
    """Return the state of each query: its last micro-batch, and what its runs have counted."""
    headings = (f"{counter.heading} " for counter in counters.with_heading())
    columns = ("query", "state", "batches ", "rows ", "rows/s ", *headings)
    return NotebookTable("Queries", columns, tuple(map(_state, queries)))


def _state(query: WatchedQuery) -> tuple[str, ...]:
    total = sum(query.totals.values(), Counts())
    state = "running" if query.running else "failed" if query.failed else "stopped"
    speed = None if query.last is None else query.last.rows_per_second
    numbers = [total[counter] for counter in counters.with_heading()]
    return (query.name, state, count(query.batches), count(query.rows), rate(speed), *map(count, numbers))


def _safe(text: str) -> str:
    return escape(printable(text).strip())
