"""A report as one HTML page that needs nothing else: styles and charts are in it, no script, light and dark. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from html import escape

from spark_streams._version import __version__
from spark_streams.monitor.report.report import GroupRow, LetterRow, QueryRow, Report
from spark_streams.monitor.report.svg import draw
from spark_streams.monitor.terminal.units import count, duration

_STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfc; --card: #fff; --ink: #1c1e21; --soft: #62676e; --rule: #e3e5e8;
  --bad: #b3261e; --c0: #0b66c3; --c1: #d1570a; --c2: #13795b; --c3: #8d3bb5; --c4: #a8740a; --c5: #b3265a; }
@media (prefers-color-scheme: dark) { :root { --paper: #131518; --card: #1b1e22; --ink: #e7e9ec; --soft: #9aa1aa;
  --rule: #30353c; --bad: #ff8a80; --c0: #6cb2ff; --c1: #ff9d5c; --c2: #55d3a4; --c3: #d09bf0; --c4: #e8c15a;
  --c5: #ff8ab4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 20px 60px; max-width: 880px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 16px; margin: 34px 0 8px; } p { margin: 4px 0; }
.soft, .none { color: var(--soft); } .bad { color: var(--bad); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; margin: 20px 0 0; }
.tiles div, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 14px; }
.tiles b { display: block; font-size: 19px; white-space: nowrap; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
figure { margin: 0 0 14px; } figcaption { font-weight: 600; margin-bottom: 4px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; } svg text.y { text-anchor: end; }
.grid { stroke: var(--rule); } .tick { stroke: var(--soft); }
path { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
circle { fill: var(--c); opacity: 0; } circle:hover, .alone circle { opacity: 1; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); }
.c5 { --c: var(--c5); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; padding: 0; margin: 6px 0 2px;
  font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 12px; height: 3px; border-radius: 2px; background: var(--c);
  margin-right: 6px; vertical-align: middle; } .legend b { color: var(--ink); font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 13px; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td { max-width: 34ch; overflow-wrap: break-word; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.n + td:not(.n), .n + th:not(.n) { padding-left: 18px; }
.bar { display: block; height: 9px; margin-top: 6px; border-radius: 3px; background: var(--c0); min-width: 2px; }
td.room { width: 34%; }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
@media (max-width: 620px) { td.room { display: none; } }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
"""
_ROWS = 200  # of a table; what stands behind is told by its number


def page(report: Report) -> str:
    """The whole page."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="soft">{_period(report)}</p>',
        _tiles(report),
    ]
    if report.charts:
        parts.append("<h2>Over time</h2>")
        for chart in report.charts:
            parts.append(
                f"<figure><figcaption>{escape(chart.title)}</figcaption>"
                f"{draw(chart, report.began, report.ended)}</figure>"
            )
    parts.append(_groups(report))
    parts.append(_queries(report.queries))
    parts.append(_consumers(report))
    parts.append(_letters(report.letters))
    parts.append(
        "<footer>Lag: entries that a group has yet to be given. Behind: the age of the oldest entry that it has not "
        "acknowledged. Pending: given, and not acknowledged; oldest: how long the longest has waited. "
        f"Times are UTC. Made by rstream report {escape(__version__)}.</footer></body></html>"
    )
    return "\n".join(part for part in parts if part) + "\n"


def _period(report: Report) -> str:
    if report.ended == report.began:
        return f"as of {_moment(report.ended)}"
    return f"{_moment(report.began)} – {_moment(report.ended)} ({duration(report.ended - report.began)})"


def _moment(at: int) -> str:
    return datetime.datetime.fromtimestamp(at / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _tiles(report: Report) -> str:
    lags = [one.lag for one in report.groups if one.lag is not None]
    pending = [one.pending for one in report.groups if one.pending is not None]
    slowest = max(report.groups, key=lambda one: (one.lag_ms or 0, one.lag or 0), default=None)
    tiles = []
    of = "" if report.streams is None else f" of {report.streams:,} {_plural('stream', report.streams)}"
    tiles.append((_plural("group", len(report.groups)) + of, f"{len(report.groups):,}", ""))
    at_least = any(one.at_least for one in report.groups)
    tiles.append(("entries of lag", count(sum(lags), at_least) if lags else "?", ""))
    tiles.append(("entries pending", f"{sum(pending):,}" if pending else "?", ""))
    if slowest is not None and (slowest.lag or slowest.pending):
        tiles.append((f"{slowest.group} of {slowest.stream} is behind", duration(slowest.lag_ms), ""))
    if report.letters is not None:
        letters = sum(one.letters for one in report.letters)
        tiles.append((_plural("dead letter", letters), f"{letters:,}", "bad" if letters else ""))
    if report.queries is not None:
        failures = sum(len(one.failures) for one in report.queries)
        dead = sum(one.dead for one in report.queries)
        tiles.append((_plural("dead letter", dead), f"{dead:,}", "bad" if dead else ""))
        tiles.append((_plural("failed run", failures), f"{failures:,}", "bad" if failures else ""))
    cells = [
        f'<div><b class="{css}">{escape(value)}</b><span>{escape(name)}</span></div>' for name, value, css in tiles
    ]
    return f'<div class="tiles">{"".join(cells)}</div>'


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else noun + "s"


def _groups(report: Report) -> str:
    if not report.groups:
        return '<h2>Groups</h2><p class="none">no consumer group reads from these streams</p>'
    groups = sorted(report.groups, key=lambda one: (-(one.lag_ms or 0), -(one.lag or 0), one.stream, one.group))
    most = max((one.lag or 0 for one in groups), default=0)
    rows = [
        [
            escape(one.stream),
            escape(one.group),
            *_numbers(count(one.lag, one.at_least), duration(one.lag_ms), count(one.pending), _idle(one)),
            _bar(one.lag or 0, most) if not report.charts else _cell(escape(one.position)),
        ]
        for one in groups
    ]
    last = "" if not report.charts else "position"
    return "<h2>Groups</h2>" + _table(("stream", "group", "#lag", "#behind", "#pending", "#oldest", last), rows)


def _idle(one: GroupRow) -> str:
    return "–" if one.oldest_idle_ms is None else duration(one.oldest_idle_ms)


def _queries(queries: Sequence[QueryRow] | None) -> str:
    if queries is None:
        return ""
    rows = [
        [
            escape(one.name),
            *_numbers(f"{one.batches:,}", f"{one.rows:,}", duration(one.longest_ms)),
            *_numbers(f"{one.claimed:,}", _alarm(one.dead), _alarm(one.lost), _alarm(len(one.failures))),
        ]
        for one in queries
    ]
    names = ("query", "#batches", "#rows", "#longest batch", "#claimed", "#dead", "#lost", "#failed runs")
    text = "<h2>Queries</h2>" + _table(names, rows)
    failures = sorted((*failure, one.name) for one in queries for failure in one.failures)
    if failures:
        told = [[escape(at), escape(name), escape(error), escape(said)] for at, error, said, name in failures]
        text += "<h2>Failed runs</h2>" + _table(("when", "query", "error", "message"), told[-_ROWS:])
    return text


def _alarm(value: int) -> str:
    return f'<span class="bad">{value:,}</span>' if value else "0"


def _consumers(report: Report) -> str:
    if not report.consumers:
        return ""
    found = sorted(report.consumers, key=lambda one: (-one.pending, one.stream, one.group, one.consumer))
    rows = [
        [
            escape(one.stream),
            escape(one.group),
            escape(one.consumer),
            *_numbers(
                f"{one.pending:,}",
                "–" if one.oldest_idle_ms is None else duration(one.oldest_idle_ms),
                duration(one.idle_ms) + " ago",
            ),
        ]
        for one in found
    ]
    return "<h2>Consumers</h2>" + _table(("stream", "group", "consumer", "#pending", "#oldest", "#last seen"), rows)


def _letters(letters: Sequence[LetterRow] | None) -> str:
    if letters is None:
        return ""
    if not letters:
        return '<h2>Dead letters</h2><p class="none">no stream holds any</p>'
    most = max(one.letters for one in letters)
    rows = [
        [
            escape(one.stream),
            escape(one.stage),
            escape(one.reason),
            escape(one.error),
            *_numbers(f"{one.letters:,}"),
            _bar(one.letters, most),
        ]
        for one in letters
    ]
    return "<h2>Dead letters by reason</h2>" + _table(("stream", "stage", "reason", "error", "#letters", ""), rows)


def _bar(value: int, most: int) -> str:
    if not value:
        return '<td class="room"></td>'
    return f'<td class="room"><span class="bar" style="width:{100 * value / most:.1f}%"></span></td>'


def _numbers(*cells: str) -> Iterable[str]:
    return [f'<td class="n">{cell}</td>' for cell in cells]


def _cell(markup: str) -> str:
    return f"<td>{markup}</td>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """names: `#` before a column of numbers; cells: markup, with or without their own <td>."""
    head = "".join(f'<th class="n">{name[1:]}</th>' if name.startswith("#") else f"<th>{name}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(cell if cell.startswith("<td") else _cell(cell) for cell in row) + "</tr>"
        for row in rows[:_ROWS]
    )
    more = f'<p class="soft">and {len(rows) - _ROWS:,} more</p>' if len(rows) > _ROWS else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'
