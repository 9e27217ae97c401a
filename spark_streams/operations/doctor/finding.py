"""One result of a check. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity. note: worth knowing, often intended; warning: entries may be lost, or a query may stop; danger: entries
    will be lost, or nothing can be written."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    DANGER = "danger"


_ORDER = list(Level)


@dataclass(frozen=True)
class Finding:
    """A finding. about: its subject, a word or two; observation: the state of the server; effect: on queries; remedy:
    what to do. effect and remedy may be empty. nodes: the nodes of a cluster to which it applies; empty for a single
    server, and for the cluster as a whole."""

    level: Level
    about: str
    observation: str
    effect: str = ""
    remedy: str = ""
    nodes: tuple[str, ...] = ()

    def for_json(self) -> dict[str, object]:
        """Return the finding as a JSON object."""
        return {
            "level": str(self.level),
            "about": self.about,
            "said": self.observation,
            "effect": self.effect,
            "remedy": self.remedy,
            "nodes": list(self.nodes),
        }


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level of the findings."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.OK)


def sorted_by_level(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with the worst first, otherwise in their order."""
    return sorted(findings, key=lambda finding: -_ORDER.index(finding.level))
