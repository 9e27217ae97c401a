"""The live board of `rstream top`. Pure: snapshots in, a rich table out; no clock, no socket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from spark_streams.base.given_text import from_milliseconds
from spark_streams.base.printable import printable
from spark_streams.base.units import count, counted, duration, rate, sparkline
from spark_streams.connector.lag.survey import ConsumerLag, GroupLag
from spark_streams.connector.wire.xinfo import SHOWN
from spark_streams.operations.monitor.rates import UNKNOWN, Key, Rates, SurveyHistory, total

_LEAST = 6  # columns of the screen


def shorten(name: str, width: int) -> str:
    """Return a long name without its middle: names with the same beginning differ at their end."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: max(0, width - 1 - tail)]}…{name[len(name) - tail :] if tail else ''}"


def widths(names: Sequence[Sequence[str]], heads: Sequence[str], total_width: int) -> list[int]:
    """Return the width of each column of names, so that all fit: full width for narrow columns, equal parts for wide
    ones. names: row by row; total_width: of all columns."""
    full_widths = [max(map(len, column)) for column in zip(heads, *names, strict=True)]
    name_widths = [0] * len(full_widths)
    for done, column in enumerate(sorted(range(len(full_widths)), key=lambda column: full_widths[column])):
        name_widths[column] = max(
            _LEAST, min(full_widths[column], (total_width - sum(name_widths)) // (len(full_widths) - done))
        )
    return name_widths


_SPARK = (13, 40)  # columns of a sparkline: minimum, maximum
_RATES = ("added/s", "deliv/s", "acked/s")
_COURSE = "lag over time"
_WIDTHS = {"lag": 7, "behind": 9, "pending": 7, "oldest": 9, **dict.fromkeys(_RATES, 7)}
_Part = str | tuple[str, str]  # a text, or a text and its style
_NAMES = ("stream", "group", "consumer")
_GAP = 2  # blanks between columns
_ONE_LINE = 120  # columns of a screen on which all totals fit in one line
_SHORTEST = 20  # minimum columns for the names of the slowest group
_NEEDS = {_COURSE: 112, "oldest": 96, "acked/s": 84, "deliv/s": 76, "added/s": 68}  # columns of the screen
_SLOW_MS, _STUCK_MS = 10_000, 60_000  # behind: yellow, red


@dataclass(frozen=True)
class Title:
    """The title line."""

    where: str  # the address
    server: str  # its name and version
    every_ms: int  # between snapshots
    trouble: str = ""  # the current error
    group: str | None = None  # the only group that is shown; None: all


class Board:
    """One screen: the groups that are furthest behind, and below them as many consumers as fit."""

    def __init__(self, title: Title, history: SurveyHistory, height: int | None = None) -> None:
        self._title = title
        self._history = history
        self._height = height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = self._height or options.height or console.height
        width = options.max_width
        rates = self._history.rates()
        groups = sorted(self._history.last.groups, key=_rank, reverse=True)
        head = Group(*self._head(groups, rates, width))
        yield head
        if not groups:
            yield Text(f"\n{self._no_groups()}")
            return
        height -= len(console.render_lines(head, options.update(height=None))) - 3
        rows_left = max(3, height - 8)
        consumers = [(group, consumer) for group in groups for consumer in _holders(group)]
        # A third of the screen for consumers, more if the groups need less.
        fits = len(groups) + len(consumers) + 9 <= height
        for_consumers = (
            len(consumers)
            if fits
            else min(len(consumers), max(rows_left // 3, rows_left - len(groups) - 3))
            if rows_left > 8
            else 0
        )
        for_groups = len(groups) if fits else max(1, rows_left - (for_consumers + 3 if for_consumers else 0))
        yield Text()
        yield self._groups(groups[:for_groups], rates, width)
        if len(groups) > for_groups:
            yield Text(f"… and {counted(len(groups) - for_groups, 'more group')}", style="dim")
        if for_consumers > 0:
            yield Text()
            yield _consumers(consumers[:for_consumers], width)
            if len(consumers) > for_consumers:
                yield Text(f"… and {counted(len(consumers) - for_consumers, 'more consumer')}", style="dim")

    def _no_groups(self) -> str:
        if not self._history.last.streams:
            return "the server holds no streams"
        named = "" if self._title.group is None else f" {self._title.group!r}"
        return f"no consumer group{named} reads from these streams; a query creates its group at its first start"

    def _head(self, groups: list[GroupLag], rates: dict[Key, Rates], width: int) -> Iterator[RenderableType]:
        last, title = self._history.last, self._title
        time_of_day = from_milliseconds(last.at_ms).strftime("%H:%M:%S UTC")
        about = f"   {time_of_day}   every {title.every_ms / 1000:g} s   {title.server}   {title.where}"
        yield _line(("rstream top", "bold"), about)
        totals: list[_Part] = [f"streams {len(last.streams):,}   groups {len(groups):,}"]
        if not groups:
            yield _line(*totals)
        else:
            lag = count(sum(group.lag for group in groups), any(group.at_least for group in groups))
            totals += ["   lag ", (lag, "bold"), "   pending ", (count(sum(group.pending for group in groups)), "bold")]
            speed = total(rates)
            speeds: list[_Part] = ["added ", (rate(speed.added), "bold"), "/s"]
            speeds += ["   delivered ", (rate(speed.delivered), "bold"), "/s"]
            speeds += ["   acknowledged ", (rate(speed.acknowledged), "bold"), "/s"]
            yield from [_line(*totals, "   ", *speeds)] if width >= _ONE_LINE else [_line(*totals), _line(*speeds)]
        if title.trouble:
            yield Text(f"{title.trouble}; showing the state at {time_of_day}", style="bold red")
        elif groups:
            # An active group, if one is behind.
            slowest = max(groups, key=lambda group: (group.lag + group.pending > 0, *_rank(group)))
            yield _slowest(slowest, rates.get((slowest.stream, slowest.group), UNKNOWN), width)

    def _groups(self, groups: list[GroupLag], rates: dict[Key, Rates], width: int) -> Table:
        keys = [(group.stream, group.group) for group in groups]
        # On a narrow screen whole columns are left out, not digits.
        numbers = [name for name in ("lag", "behind", "pending", "oldest", *_RATES) if width >= _NEEDS.get(name, 0)]
        rows = [self._numbers(group, rates.get(key, UNKNOWN)) for key, group in zip(keys, groups, strict=True)]
        number_widths = [max(_WIDTHS[name], *(len(row[name]) for row in rows)) for name in numbers]
        free_columns = width - sum(number_widths) - _GAP * (len(number_widths) + 1)
        names = [(printable(group.stream), printable(group.group)) for group in groups]
        table = _table()
        spark = 0
        if width >= _NEEDS[_COURSE]:
            free = free_columns - _GAP - sum(widths(names, _NAMES[:2], 10 * width))
            spark = max(_SPARK[0], min(_SPARK[1], free))
            free_columns -= spark + _GAP
        name_widths = _add_names(table, names, _NAMES[:2], free_columns)
        for name, size in zip(numbers, number_widths, strict=True):
            table.add_column(name, justify="right", no_wrap=True, min_width=size)
        if spark:
            table.add_column(_COURSE, no_wrap=True, min_width=_SPARK[0])
        lags = self._history.lags(keys)
        for key, group, name_cells, row in zip(keys, groups, names, rows, strict=True):
            cells = [Text(row[name], style=_colour(group) if name == "behind" else "") for name in numbers]
            course = [Text(sparkline(lags[key], spark), style="cyan")] if spark else []
            table.add_row(*_shortened(name_cells, name_widths), *cells, *course)
        return table

    @staticmethod
    def _numbers(group: GroupLag, speed: Rates) -> dict[str, str]:
        """Return the cells of a group by column."""
        return {
            "lag": count(group.lag, group.at_least),
            "behind": duration(group.lag_ms),
            "pending": count(group.pending),
            "oldest": "-" if group.oldest_idle_ms is None else duration(group.oldest_idle_ms),
            **dict(zip(_RATES, map(rate, (speed.added, speed.delivered, speed.acknowledged)), strict=True)),
        }


def _holders(group: GroupLag) -> list[ConsumerLag | None]:
    """Return the group's consumers, and None if it has released entries."""
    return [*group.consumers, *([None] if group.released else [])]


def _consumers(consumers: list[tuple[GroupLag, ConsumerLag | None]], width: int) -> Table:
    table = _table()
    names = [
        (printable(group.stream), printable(group.group), SHOWN if consumer is None else printable(consumer.consumer))
        for group, consumer in consumers
    ]
    heads = ("pending", "oldest", "last seen")
    rows = [
        (count(group.released), "-", "-")
        if consumer is None
        else (
            count(consumer.pending),
            "-" if consumer.oldest_idle_ms is None else duration(consumer.oldest_idle_ms),
            duration(consumer.idle_ms) + " ago",
        )
        for group, consumer in consumers
    ]
    number_widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    name_widths = _add_names(table, names, _NAMES, width - sum(number_widths) - _GAP * (len(number_widths) + 2))
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name_cells, row in zip(names, rows, strict=True):
        table.add_row(*_shortened(name_cells, name_widths), *row)
    return table


def _add_names(table: Table, names: Sequence[Sequence[str]], heads: Sequence[str], free_columns: int) -> list[int]:
    """Add columns of names that fit, and return their widths."""
    name_widths = widths(names, heads, free_columns)
    for head, size in zip(heads, name_widths, strict=True):
        table.add_column(head, no_wrap=True, overflow="ellipsis", min_width=size)
    return name_widths


def _shortened(names: Sequence[str], name_widths: Sequence[int]) -> list[Text]:
    return [Text(shorten(name, size)) for name, size in zip(names, name_widths, strict=True)]


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))


def _line(*parts: _Part) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _slowest(group_lag: GroupLag, speed: Rates, width: int) -> Text:
    if group_lag.lag == 0 and group_lag.pending == 0:
        return Text("all groups have acknowledged all entries", style="green")
    growth, trend = speed.growth, ""
    if growth is not None and group_lag.lag:
        trend = ", lag is constant"
        if growth < 0:
            trend = f", caught up in {duration(group_lag.lag / -growth * 1000)}"
        elif growth > 0:
            trend = f", lag grows by {rate(growth)}/s"
    label, delay = "furthest behind: ", duration(group_lag.lag_ms)
    free_columns = width - len(label) - len(", ") - len(delay) - len(trend)
    names = printable(group_lag.group), printable(group_lag.stream)
    group, stream = map(shorten, names, widths([names], ("", ""), max(_SHORTEST, free_columns - len(" of "))))
    return _line(label, (f"{group} of {stream}", "bold"), ", ", (delay, _colour(group_lag)), trend)


def _rank(group: GroupLag) -> tuple[bool, int, int, int]:
    """Return the sort key of the rows: active groups, then the others, each with the furthest behind first."""
    return group.is_active, group.lag_ms or 0, group.lag, group.pending


def _colour(group: GroupLag) -> str:
    if group.lag_ms is None:
        return ""
    behind = group.lag_ms
    return "red" if behind >= _STUCK_MS else "yellow" if behind >= _SLOW_MS else "green"
