"""The live board of `rstream top`: who keeps up, who does not. Looks in, a rich table out; no clock, no socket."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from spark_streams.model.printable import printable
from spark_streams.monitor.lag_survey import ConsumerStanding, GroupStanding
from spark_streams.monitor.rates import UNKNOWN, History, Key, Rates
from spark_streams.monitor.terminal.names import shorten, widths
from spark_streams.monitor.terminal.units import count, duration, rate, sparkline
from spark_streams.wire.replies.released import SHOWN

_SPARK = (13, 40)  # columns that a sparkline has, at least and at most
_RATES = ("added/s", "deliv/s", "acked/s")
_COURSE = "lag over time"
_WIDTHS = {"lag": 7, "behind": 9, "pending": 7, "oldest": 9, **dict.fromkeys(_RATES, 7)}
_Part = str | tuple[str, str]  # a text, or a text and its style
_NAMES = ("stream", "group", "consumer")
_GAP = 2  # blanks between columns
_ONE_LINE = 120  # columns of the screen on which all totals stand side by side
_SHORTEST = 20  # columns that the names of the slowest group have at least
_NEEDS = {_COURSE: 112, "oldest": 96, "acked/s": 84, "deliv/s": 76, "added/s": 68}  # columns of the screen
_SLOW_MS, _STUCK_MS = 10_000, 60_000  # behind: yellow, red


@dataclass(frozen=True)
class Title:
    """What stands above: where we look, what server it is, how often we look, what is wrong at the moment, and for
    which group alone we look (None: all)."""

    where: str
    server: str
    every_ms: int
    trouble: str = ""
    group: str | None = None


class Board:
    """Everything on one screen: the groups that are furthest behind, and below them the consumers, as far as there is
    room for them."""

    def __init__(self, title: Title, history: History, height: int | None = None) -> None:
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
        room = max(3, height - 8)
        consumers = [(group, one) for group in groups for one in _holders(group)]
        # A third of the screen for consumers, more where the groups leave it.
        fits = len(groups) + len(consumers) + 9 <= height
        for_consumers = (
            len(consumers) if fits else min(len(consumers), max(room // 3, room - len(groups) - 3)) if room > 8 else 0
        )
        for_groups = len(groups) if fits else max(1, room - (for_consumers + 3 if for_consumers else 0))
        yield Text()
        yield self._groups(groups[:for_groups], rates, width)
        if len(groups) > for_groups:
            yield _more(len(groups) - for_groups, "group")
        if for_consumers > 0:
            yield Text()
            yield _consumers(consumers[:for_consumers], width)
            if len(consumers) > for_consumers:
                yield _more(len(consumers) - for_consumers, "consumer")

    def _no_groups(self) -> str:
        if not self._history.last.streams:
            return "the server holds no streams"
        named = "" if self._title.group is None else f" {self._title.group!r}"
        return f"no consumer group{named} reads from these streams; a query's first run makes its group"

    def _head(self, groups: list[GroupStanding], rates: dict[Key, Rates], width: int) -> Iterator[RenderableType]:
        last, title = self._history.last, self._title
        at = datetime.datetime.fromtimestamp(last.at_ms / 1000, datetime.UTC).strftime("%H:%M:%S UTC")
        about = f"   {at}   every {title.every_ms / 1000:g} s   {title.server}   {title.where}"
        yield _line(("rstream top", "bold"), about)
        there: list[_Part] = [f"streams {len(last.streams):,}   groups {len(groups):,}"]
        if not groups:
            yield _line(*there)
        else:
            lag = count(sum(one.lag for one in groups), any(one.at_least for one in groups))
            there += ["   lag ", (lag, "bold"), "   pending ", (count(sum(one.pending for one in groups)), "bold")]
            added = {key[0]: one.added for key, one in rates.items()}
            speeds: list[_Part] = ["added ", (_total(added.values()), "bold"), "/s"]
            speeds += ["   delivered ", (_total(one.delivered for one in rates.values()), "bold"), "/s"]
            speeds += ["   acknowledged ", (_total(one.acknowledged for one in rates.values()), "bold"), "/s"]
            yield from [_line(*there, "   ", *speeds)] if width >= _ONE_LINE else [_line(*there), _line(*speeds)]
        if title.trouble:
            yield Text(f"{title.trouble}; what follows is how it was at {at}", style="bold red")
        elif groups:
            slowest = max(groups, key=_urgency)
            yield _slowest(slowest, rates.get((slowest.stream, slowest.group), UNKNOWN), width)

    def _groups(self, groups: list[GroupStanding], rates: dict[Key, Rates], width: int) -> Table:
        keys = [(one.stream, one.group) for one in groups]
        # On a narrow screen whole columns go, not digits.
        numbers = [name for name in ("lag", "behind", "pending", "oldest", *_RATES) if width >= _NEEDS.get(name, 0)]
        rows = [self._numbers(one, rates.get(key, UNKNOWN)) for key, one in zip(keys, groups, strict=True)]
        wide = [max(_WIDTHS[name], *(len(row[name]) for row in rows)) for name in numbers]
        room = width - sum(wide) - _GAP * (len(wide) + 1)
        names = [(printable(one.stream), printable(one.group)) for one in groups]
        table = _table()
        spark = 0
        if width >= _NEEDS[_COURSE]:
            free = room - _GAP - sum(widths(names, _NAMES[:2], 10 * width))
            spark = max(_SPARK[0], min(_SPARK[1], free))
            room -= spark + _GAP
        given = _add_names(table, names, _NAMES[:2], room)
        for name, size in zip(numbers, wide, strict=True):
            table.add_column(name, justify="right", no_wrap=True, min_width=size)
        if spark:
            table.add_column(_COURSE, no_wrap=True, min_width=_SPARK[0])
        lags = self._history.lags(keys)
        for key, one, named, row in zip(keys, groups, names, rows, strict=True):
            cells = [Text(row[name], style=_colour(one) if name == "behind" else "") for name in numbers]
            course = [Text(sparkline(lags[key], spark), style="cyan")] if spark else []
            table.add_row(*_shortened(named, given), *cells, *course)
        return table

    @staticmethod
    def _numbers(one: GroupStanding, speed: Rates) -> dict[str, str]:
        """By column, what is told of a group."""
        return {
            "lag": count(one.lag, one.at_least),
            "behind": duration(one.lag_ms),
            "pending": count(one.pending),
            "oldest": "-" if one.oldest_idle_ms is None else duration(one.oldest_idle_ms),
            **dict(zip(_RATES, map(rate, (speed.added, speed.delivered, speed.acknowledged)), strict=True)),
        }


def _holders(group: GroupStanding) -> list[ConsumerStanding | None]:
    """The group's consumers, and None if entries are pending for none of them."""
    return [*group.consumers, *([None] if group.released else [])]


def _consumers(consumers: list[tuple[GroupStanding, ConsumerStanding | None]], width: int) -> Table:
    table = _table()
    names = [
        (printable(group.stream), printable(group.group), SHOWN if one is None else printable(one.consumer))
        for group, one in consumers
    ]
    heads = ("pending", "oldest", "last seen")
    rows = [
        (count(group.released), "-", "-")
        if one is None
        else (
            count(one.pending),
            "-" if one.oldest_idle_ms is None else duration(one.oldest_idle_ms),
            duration(one.idle_ms) + " ago",
        )
        for group, one in consumers
    ]
    wide = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    given = _add_names(table, names, _NAMES, width - sum(wide) - _GAP * (len(wide) + 2))
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for named, row in zip(names, rows, strict=True):
        table.add_row(*_shortened(named, given), *row)
    return table


def _add_names(table: Table, names: Sequence[Sequence[str]], heads: Sequence[str], room: int) -> list[int]:
    """Columns of names that fit; how wide each is."""
    given = widths(names, heads, room)
    for head, size in zip(heads, given, strict=True):
        table.add_column(head, no_wrap=True, overflow="ellipsis", min_width=size)
    return given


def _shortened(names: Sequence[str], given: Sequence[int]) -> list[Text]:
    return [Text(shorten(name, size)) for name, size in zip(names, given, strict=True)]


def _more(number: int, noun: str) -> Text:
    return Text(f"… and {number:,} more {noun}{'' if number == 1 else 's'}", style="dim")


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))


def _line(*parts: _Part) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _slowest(one: GroupStanding, speed: Rates, width: int) -> Text:
    if one.lag == 0 and one.pending == 0:
        return Text("every group has acknowledged everything", style="green")
    growth, trend = speed.growth, ""
    if growth is not None and one.lag:
        trend = ", neither better nor worse"
        if growth < 0:
            trend = f", caught up in {duration(one.lag / -growth * 1000)}"
        elif growth > 0:
            trend = f", lag grows by {rate(growth)}/s"
    before, by = "furthest behind: ", duration(one.lag_ms)
    room = width - len(before) - len(", ") - len(by) - len(trend)
    names = printable(one.group), printable(one.stream)
    group, stream = map(shorten, names, widths([names], ("", ""), max(_SHORTEST, room - len(" of "))))
    return _line(before, (f"{group} of {stream}", "bold"), ", ", (by, _colour(one)), trend)


def _rank(one: GroupStanding) -> tuple[bool, int, int, int]:
    """The order of the rows: groups that somebody reads from, then the others; each with the furthest behind first."""
    return one.is_active, one.lag_ms or 0, one.lag, one.pending


def _urgency(one: GroupStanding) -> tuple[bool, bool, int, int, int]:
    """What is named as furthest behind: a group that somebody reads from, if one is behind."""
    return one.lag + one.pending > 0, *_rank(one)


def _colour(one: GroupStanding) -> str:
    behind = one.lag_ms or 0
    return "red" if behind >= _STUCK_MS else "yellow" if behind >= _SLOW_MS else "green"


def _total(values: object) -> str:
    known = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return rate(sum(known)) if known else "?"
