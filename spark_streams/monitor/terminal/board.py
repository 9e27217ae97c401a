"""The live board of `rstream top`: who keeps up, who does not. Looks in, a rich table out; no clock, no socket."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from spark_streams.monitor.lag_survey import ConsumerStanding, GroupStanding
from spark_streams.monitor.rates import UNKNOWN, History, Key, Rates
from spark_streams.monitor.terminal.units import count, duration, printable, rate, sparkline

_SPARK = (10, 40)  # columns that a sparkline has, at least and at most
_RATES = ("added/s", "deliv/s", "acked/s")
_COURSE = "lag over time"
_WIDTHS = {"lag": 7, "behind": 9, "pending": 7, "oldest": 9, **dict.fromkeys(_RATES, 7)}
_NEEDS = {_COURSE: 112, "oldest": 96, "acked/s": 84, "deliv/s": 76, "added/s": 68}  # columns of the screen
_SLOW_MS, _STUCK_MS = 10_000, 60_000  # behind: yellow, red


@dataclass(frozen=True)
class Title:
    """What stands above: where we look, what server it is, how often we look, and what is wrong at the moment."""

    where: str
    server: str
    every_ms: int
    trouble: str = ""


class Board:
    """Everything on one screen: the groups that are furthest behind, and below them the consumers, as far as there is
    room for them."""

    def __init__(self, title: Title, history: History, height: int | None = None) -> None:
        self._title = title
        self._history = history
        self._height = height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = self._height or options.height or console.height
        last = self._history.last
        rates = self._history.rates()
        groups = sorted(last.groups, key=_urgency, reverse=True)
        yield self._head(groups, rates)
        if not groups:
            yield Text("\nno consumer group reads from " + ("these streams" if last.streams else "any stream"))
            return
        room = max(3, height - 8)
        consumers = [(group, one) for group in groups for one in group.consumers]
        # A third of the screen for consumers, more where the groups leave it.
        fits = len(groups) + len(consumers) + 9 <= height
        for_consumers = (
            len(consumers) if fits else min(len(consumers), max(room // 3, room - len(groups) - 3)) if room > 8 else 0
        )
        for_groups = len(groups) if fits else max(1, room - (for_consumers + 3 if for_consumers else 0))
        yield Text()
        yield self._groups(groups[:for_groups], rates, options.max_width)
        if len(groups) > for_groups:
            yield _more(len(groups) - for_groups, "group")
        if for_consumers > 0:
            yield Text()
            yield _consumers(consumers[:for_consumers])
            if len(consumers) > for_consumers:
                yield _more(len(consumers) - for_consumers, "consumer")

    def _head(self, groups: list[GroupStanding], rates: dict[Key, Rates]) -> RenderableType:
        last, title = self._history.last, self._title
        at = datetime.datetime.fromtimestamp(last.at_ms / 1000, datetime.UTC).strftime("%H:%M:%S UTC")
        first = Text.assemble(
            ("rstream top", "bold"),
            f"   {title.where}   {title.server}   {at}   every {title.every_ms / 1000:g} s",
            no_wrap=True,
            overflow="ellipsis",
        )
        added = {key[0]: one.added for key, one in rates.items()}
        totals = Text.assemble(
            f"streams {len(last.streams):,}   groups {len(groups):,}   added ",
            (_total(added.values()), "bold"),
            "/s   delivered ",
            (_total(one.delivered for one in rates.values()), "bold"),
            "/s   acknowledged ",
            (_total(one.acknowledged for one in rates.values()), "bold"),
            "/s   lag ",
            (count(sum(one.lag for one in groups), any(one.at_least for one in groups)), "bold"),
            "   pending ",
            (count(sum(one.pending for one in groups)), "bold"),
        )
        lines: list[RenderableType] = [first, totals]
        if title.trouble:
            lines.append(Text(title.trouble, style="bold red"))
        elif groups:
            lines.append(_slowest(groups[0], rates.get((groups[0].stream, groups[0].group), UNKNOWN)))
        return Group(*lines)

    def _groups(self, groups: list[GroupStanding], rates: dict[Key, Rates], width: int) -> Table:
        keys = [(one.stream, one.group) for one in groups]
        lags = self._history.lags(keys)
        table = _table("stream", "group")
        # On a narrow screen whole columns go, not digits.
        hidden = {name for name, needs in _NEEDS.items() if width < needs}
        names = [name for name in ("lag", "behind", "pending", "oldest", *_RATES) if name not in hidden]
        for name in names:
            table.add_column(name, justify="right", no_wrap=True, min_width=_WIDTHS[name])
        spark = 0 if _COURSE in hidden else max(_SPARK[0], min(_SPARK[1], width - 100))
        if spark:
            table.add_column(_COURSE, no_wrap=True, min_width=_SPARK[0])
        for key, one in zip(keys, groups, strict=True):
            speed = rates.get(key, UNKNOWN)
            cells: dict[str, RenderableType] = {
                "lag": count(one.lag, one.at_least),
                "behind": Text(duration(one.lag_ms), style=_colour(one)),
                "pending": count(one.pending),
                "oldest": "-" if one.oldest_idle_ms is None else duration(one.oldest_idle_ms),
                **dict(zip(_RATES, map(rate, (speed.added, speed.delivered, speed.acknowledged)), strict=True)),
            }
            course = [Text(sparkline(lags[key], spark), style="cyan")] if spark else []
            table.add_row(
                Text(printable(one.stream)), Text(printable(one.group)), *[cells[name] for name in names], *course
            )
        return table


def _consumers(consumers: list[tuple[GroupStanding, ConsumerStanding]]) -> Table:
    table = _table("stream", "group", "consumer")
    for name in ("pending", "oldest", "last seen"):
        table.add_column(name, justify="right", no_wrap=True)
    for group, one in consumers:
        table.add_row(
            Text(printable(group.stream)),
            Text(printable(group.group)),
            Text(printable(one.consumer)),
            count(one.pending),
            "-" if one.oldest_idle_ms is None else duration(one.oldest_idle_ms),
            duration(one.idle_ms) + " ago",
        )
    return table


def _more(number: int, noun: str) -> Text:
    return Text(f"… and {number:,} more {noun}{'' if number == 1 else 's'}", style="dim")


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=6, max_width=36)
    return table


def _slowest(one: GroupStanding, speed: Rates) -> Text:
    name = f"{printable(one.group)} of {printable(one.stream)}"
    if one.lag == 0 and one.pending == 0:
        return Text("every group has acknowledged everything", style="green")
    text = Text.assemble("furthest behind: ", (name, "bold"), ", ", (duration(one.lag_ms), _colour(one)))
    growth = speed.growth
    if growth is None or one.lag == 0:
        return text
    if growth < 0:
        return text.append(f", caught up in {duration(one.lag / -growth * 1000)}")
    return text.append(f", lag grows by {rate(growth)}/s" if growth > 0 else ", neither better nor worse")


def _urgency(one: GroupStanding) -> tuple[bool, int, int, int]:
    return one.lag + one.pending > 0, one.lag_ms or 0, one.lag, one.pending


def _colour(one: GroupStanding) -> str:
    behind = one.lag_ms or 0
    return "red" if behind >= _STUCK_MS else "yellow" if behind >= _SLOW_MS else "green"


def _total(values: object) -> str:
    known = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return rate(sum(known)) if known else "?"
