"""grafana.json without Grafana: its panels, and what they ask of Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
CONF = ROOT / "spark_streams" / "jobs" / "templates"


@dataclass(frozen=True)
class Panel:
    """kind: stat, timeseries, table; queries: (PromQL, legend), its variables filled in; place: x, y, width, height on
    a grid of 24 columns; words: what stands in place of some values; columns: of a table, one for each query."""

    title: str
    kind: str
    queries: tuple[tuple[str, str], ...]
    unit: str
    place: tuple[int, int, int, int]
    stacked: bool
    lowest: float | None
    highest: float | None
    words: dict[str, str]
    columns: tuple[tuple[str, str], ...]  # title, unit


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
            {value: one["text"] for each in defaults.get("mappings", ()) for value, one in each["options"].items()},
            tuple(_columns(one)) if one["type"] == "table" else (),
        )


def _columns(panel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    [titles] = [one["options"]["renameByName"] for one in panel["transformations"] if one["id"] == "organize"]
    units = {one["matcher"]["options"]: one["properties"][0]["value"] for one in panel["fieldConfig"]["overrides"]}
    for target in panel["targets"]:
        title = titles[f"Value #{target['refId']}"]
        yield title, units.get(title, panel["fieldConfig"]["defaults"]["unit"])
