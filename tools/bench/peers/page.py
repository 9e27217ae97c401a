"""Table and chart of docs/guide/compared.md, from figures.json: `python -m tools.reference` prints them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from examples.nexmark.queries import QUERIES
from tools.bench.row import FILE

CHART = FILE.parents[1] / "assets" / "peers.svg"
_OURS = "spark-streams"
_PEERS = ("Kafka connector", "Flink", "spark-redis")
_COLOURS = {_OURS: "#c9604f", "Kafka connector": "#54708f", "Flink": "#c9b458"}
# Line of the table → number, begin and end of the measure. Of several such rows the first counts.
_LINES = {
    "read, k/s": ("K1", "drain, 3 fields, into noop", ": rate"),
    "read with noAck, k/s": ("K1", "read with noAck, 3 fields, into noop", ": rate"),
    "per client core, k/s": ("K1", "drain, 3 fields, into noop", "rate of a client core"),
    "into Parquet, k/s": ("K1", "drain, 3 fields, into parquet", ": rate"),
    "20 fields, k/s": ("K1", "drain, 20 fields, into noop", ": rate"),
    "JSON of 1 kB, k/s": ("K1", "drain, JSON of 1 kB, into noop", ": rate"),
    "write at least once, k/s": ("K3", "write, at least once", ": rate"),
    "write exactly once, k/s": ("K3", "write, exactly once:", ": rate"),
    "event to row, p50, ms": ("K2", "event to row in Parquet, 20,000/s, interval 0 s", "p50"),
    "p99, ms": ("K2", "event to row in Parquet, 20,000/s, interval 0 s", "p99"),
    "batch over 1,000 streams, s": ("K5", "a batch over 1,000 streams", ": seconds"),
    "SIGKILL to next row, s": ("K4", "kill", "seconds to the next row"),
    "rows lost": ("K4", "kill", "rows lost"),
    "rows twice": ("K4", "kill", "rows twice"),
    "start to first row, s": ("K6", "start, idle", "first row"),
    "idle client, s/h": ("K6", "start, idle", "idle client"),
    "idle server, s/h": ("K6", "start, idle", "idle server"),
    "client's memory, MB": ("K6", "start, idle", "client MB"),
    **{f"Nexmark, k/s: {query}": ("K8", f"Nexmark: {query}", ": rate") for query in QUERIES},
}
_BARS = ("read, k/s", "read with noAck, k/s", "write at least once, k/s", "write exactly once, k/s")
_HEIGHT, _LEFT, _LONGEST = 24, 250, 510  # of a bar with its gap, where bars begin, the longest


def found(file: Path = FILE) -> dict[str, dict[str, tuple[float, str]]]:
    """Return line → side → figure and unit, of what was measured."""
    rows: list[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8")).get("peers", {"rows": []})["rows"]
    lines: dict[str, dict[str, tuple[float, str]]] = {}
    # A peer with settings of its own counts only if there is none without.
    rows.sort(key=lambda row: row.get("peer") not in _PEERS)
    for line, (number, begin, end) in _LINES.items():
        for row in rows:
            measure = row["measure"]
            if row["number"] == number and measure.startswith(begin) and measure.endswith(end):
                sides = lines.setdefault(line, {_OURS: (row["ours"], row["unit"])})
                for peer in _PEERS:
                    if row["peer"].startswith(peer):
                        sides.setdefault(peer, (row["peers"], row["unit"]))
    return lines


def table(file: Path = FILE) -> str:
    """Return the chart and the table."""
    lines = found(file)
    if not lines:
        return "Kafka and Flink were not measured."
    rows = [f"| {' | '.join(['', _OURS, *_PEERS])} |", "|---|" + "---:|" * (len(_PEERS) + 1)]
    for line, sides in lines.items():
        cells = [_cell(*sides[side]) if side in sides else "" for side in (_OURS, *_PEERS)]
        rows.append(f"| {' | '.join([line, *cells])} |")
    return "\n".join([f"![{_title()}](../assets/{CHART.name})", "", *rows])


def _cell(value: float, unit: str) -> str:
    shown = value / 1e3 if unit == "/s" else value
    return f"{shown:,.0f}" if shown >= 100 else f"{shown:.3g}"


def chart(file: Path = FILE) -> str:
    """Return the drawing: bars of three colours."""
    lines = found(file)
    bars = {line: {side: lines[line][side][0] for side in _COLOURS if side in lines[line]}
            for line in _BARS if line in lines}  # fmt: skip
    unit = _LONGEST / max((value for sides in bars.values() for value in sides.values()), default=1)
    drawn = list(_drawn(bars, unit))
    height = 50 + sum(34 + _HEIGHT * len(sides) for sides in bars.values())
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height}" font-family="Segoe UI, Helvetica, Arial, '
        'sans-serif" font-size="14" role="img" aria-labelledby="peers-title">',
        f'  <title id="peers-title">{_title()}</title>',
        f'  <rect width="860" height="{height}" rx="8" fill="#ffffff"/>',
        '  <g fill="#2b2b2b">',
        f'    <text x="20" y="26" font-size="15">{_title()}, on two cores with one server</text>',
        *drawn,
        "  </g>",
        "</svg>",
        "",
    ])  # fmt: skip


def _title() -> str:
    return "Thousand entries per second"


def _drawn(bars: Mapping[str, Mapping[str, float]], unit: float) -> Iterator[str]:
    top = 40
    for line, sides in bars.items():
        yield f'    <text x="20" y="{top + 18}" font-weight="600">{line.removesuffix(", k/s")}</text>'
        top += 28
        for side, value in sides.items():
            width = max(1, round(value * unit))
            shown = f"{value / 1e3:,.3g}" if value < 1e6 else f"{value / 1e3:,.0f}"
            yield f'    <rect x="{_LEFT}" y="{top}" width="{width}" height="18" rx="3" fill="{_COLOURS[side]}"/>'
            yield f'    <text x="{_LEFT - 10}" y="{top + 14}" text-anchor="end">{side}</text>'
            yield f'    <text x="{_LEFT + width + 8}" y="{top + 14}">{shown}</text>'
            top += _HEIGHT
        top += 6
