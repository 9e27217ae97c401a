"""One thing that was looked at. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. note: worth knowing, and right for many; warning: entries may be lost or a query may stop;
    danger: they will, or nothing can be written."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    DANGER = "danger"


_ORDER = list(Level)


@dataclass(frozen=True)
class Finding:
    """about: a word or two; said: what the server is or says; effect: what the connector will do about it; remedy: what
    to set. Sentences; the last two are empty where there is nothing to say. nodes: of a cluster, those that it holds
    for; empty for one server, and for a cluster as a whole."""

    level: Level
    about: str
    said: str
    effect: str = ""
    remedy: str = ""
    nodes: tuple[str, ...] = ()

    def for_json(self) -> dict[str, object]:
        """Its fields."""
        return {**asdict(self), "level": str(self.level), "nodes": list(self.nodes)}


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level among them."""
    return max((one.level for one in findings), key=_ORDER.index, default=Level.OK)


def sorted_by_level(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, otherwise as they are."""
    return sorted(findings, key=lambda one: -_ORDER.index(one.level))
