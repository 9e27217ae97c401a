"""The figures that the pages of docs/ name: docs/internals/figures.json.

`scripts/bench --json` writes the file. It has an object for each group, with machine, date, server and Spark, and a row
for each measure: medians, as the program prints them. A group that is measured replaces the one in the file; the others
stay. tests/project/test_figures.py finds rates on the pages that are not in it.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.bench.row import Row

FILE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "figures.json"


def record(group: str, rows: Sequence[Row], file: Path = FILE) -> None:
    """Write a group that was measured into the file, in place of the one that is there."""
    groups = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    groups[group] = {**_circumstances(), "rows": [_summary(row) for row in rows if row.our_figures]}
    file.write_text(json.dumps(groups, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rows_in(file: Path = FILE) -> list[dict[str, Any]]:
    """Return the rows of all groups."""
    groups = json.loads(file.read_text(encoding="utf-8"))
    return [row for group in groups.values() for row in group["rows"]]


def _circumstances() -> dict[str, str]:
    """Return what the figures depend on."""
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    version = next(word for word in said.split() if word.startswith("v=")).removeprefix("v=")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "server": f"{said.split()[0]} {version}",
        "spark": importlib.metadata.version("pyspark"),
    }


def _summary(row: Row) -> dict[str, object]:
    """Return a row's medians. ratio: ours to the peer's."""
    summary: dict[str, object] = {
        "number": row.number, "measure": row.measure, "unit": row.unit, "rounds": len(row.our_figures),
        "ours": _rounded(statistics.median(row.our_figures)),
    }  # fmt: skip
    if row.peer is not None:
        summary["peer"] = row.peer_name
        summary["peers"] = _rounded(statistics.median(row.peer_figures))
        summary["ratio"] = _rounded(statistics.median(row.ratios))
    return summary


def _rounded(value: float) -> float:
    """Return three significant digits: the next ones are noise."""
    return float(f"{value:.3g}")
