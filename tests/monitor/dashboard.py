"""conf/grafana.json without Grafana: its panels, and what they ask of Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONF = Path(__file__).resolve().parents[2] / "conf"


@dataclass(frozen=True)
class Panel:
    """kind: stat, timeseries, table; queries: (PromQL, legend), its variables filled in; place: x, y, width, height on
    a grid of 24 columns."""

    title: str
    kind: str
    queries: tuple[tuple[str, str], ...]
    unit: str
    place: tuple[int, int, int, int]
    stacked: bool
    lowest: float | None
    highest: float | None


def board() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads((CONF / "grafana.json").read_text(encoding="utf-8"))
    return found


def filled(query: str, interval: str) -> str:
    """A query as Grafana would ask it where everything is chosen. interval: $__rate_interval, four scrapes or more."""
    for one in board()["templating"]["list"]:
        query = query.replace(f"${one['name']}", one.get("allValue", ""))
    return query.replace("$__rate_interval", interval)


def panels(interval: str) -> Iterator[Panel]:
    """All but the headings."""
    for one in board()["panels"]:
        if one["type"] == "row":
            continue
        queries = tuple((filled(target["expr"], interval), target["legendFormat"]) for target in one["targets"])
        at, defaults = one["gridPos"], one["fieldConfig"]["defaults"]
        stacking = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
        place = (at["x"], at["y"], at["w"], at["h"])
        yield Panel(
            *(one["title"], one["type"], queries, defaults["unit"], place, stacking),
            *(defaults.get("min"), defaults.get("max")),
        )
