"""What was found on each node of a cluster, said once with the nodes that it holds for. Pure.

Findings are the same where they differ in figures alone; the figures are then told from the lowest to the highest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_streams.doctor.finding import Finding

# `5`, `1,234`, `1.9 MB`; no part of a name, an address or a version.
_FIGURE = re.compile(r"(?<![\w.:-])(\d[\d,]*(?:\.\d+)?)((?: (?:bytes|KB|MB|GB))?)(?![\w:]|\.\d)")
_UNITS = {"": 1, " bytes": 1, " KB": 1 << 10, " MB": 1 << 20, " GB": 1 << 30}


def merge(found: Iterable[tuple[str, Sequence[Finding]]]) -> list[Finding]:
    """(a node, what was found on it) … in the order in which each first came."""
    alike: dict[Finding, list[tuple[str, Finding]]] = {}
    for node, some in found:
        for one in some:
            alike.setdefault(replace(one, said=_FIGURE.sub("#", one.said)), []).append((node, one))
    return [
        replace(same[0][1], said=_told_together([one.said for _, one in same]), nodes=tuple(node for node, _ in same))
        for same in alike.values()
    ]


def _told_together(said: Sequence[str]) -> str:
    """Sentences of one form as one."""
    columns = iter(zip(*(_FIGURE.findall(one) for one in said), strict=True))
    return _FIGURE.sub(lambda _: _range(next(columns)), said[0])


def _range(figures: Sequence[tuple[str, str]]) -> str:
    low, high = min(figures, key=_amount), max(figures, key=_amount)
    if low == high:
        return "".join(low)
    return f"{low[0]}{low[1] if low[1] != high[1] else ''} to {''.join(high)}"


def _amount(figure: tuple[str, str]) -> float:
    number, unit = figure
    return float(number.replace(",", "")) * _UNITS[unit]
