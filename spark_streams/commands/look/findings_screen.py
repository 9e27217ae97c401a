"""Print what `rstream doctor` has found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spark_streams.commands.shared import console
from spark_streams.model.printable import printable
from spark_streams.monitor.terminal.units import duration

if TYPE_CHECKING:
    from spark_streams.doctor.cluster import ClusterFacts
    from spark_streams.doctor.finding import Finding
    from spark_streams.doctor.server_facts import ServerFacts

_STYLES = {"danger": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}
_MOST = 100  # columns: longer lines are hard to read
_NODES = 4  # that are named


def show(facts: ServerFacts, found: Sequence[Finding]) -> None:
    """Print the findings of one server."""
    head = f"{facts.kind} {facts.version}".strip() + f" at {facts.address}"
    database = [f"database {facts.database}"] if facts.database else []
    _screen(head, [facts.mode, facts.role or "", *database, *_of_all([facts])], found, {})


def show_cluster(facts: ClusterFacts, found: Sequence[Finding]) -> None:
    """Print the findings of a cluster."""
    said = list(facts.reached.values())
    versions = sorted({f"{one.kind} {one.version}".strip() for one in said})
    known = [f"{len(facts.members)} nodes, which the url names"]
    if facts.map is not None:
        have, whole = facts.covered or 0, len(facts.map.owners)
        replicas = sum(one.master is not None for one in facts.members)
        masters = len(facts.members) - replicas
        known = [_counted(masters, "master"), _counted(replicas, "replica")]
        known.append(f"{'all' if have == whole else f'{have:,} of'} {whole:,} slots")
    head = f"{' and '.join(versions) or 'A cluster'} at {facts.address}"
    _screen(head, ["cluster", *known, *_of_all(said)], found, _groups(facts))


def _groups(facts: ClusterFacts) -> dict[frozenset[str], str]:
    """Return the names of sets of nodes. If two sets are the same nodes, the later name is used."""
    replicas = [one.name for one in facts.members if one.master is not None]
    together = {
        "that are reached": [one.name for one in facts.reached],
        "replicas": replicas,
        "masters": [one.name for one in facts.members if facts.map is not None and one.master is None],
        "nodes": [one.name for one in facts.members],
    }
    found = {}
    for called, some in together.items():
        how = f"nodes {called}" if called.startswith("that") else called
        found[frozenset(some)] = f"all {len(some)} {how}" if len(some) > 1 else ", ".join(some)
    return found


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else f'{noun}s'}"


def _of_all(said: Sequence[ServerFacts]) -> list[str]:
    """Return the users, the sum of the memory, and the shortest uptime."""
    from spark_streams.doctor.server_facts import size

    users = sorted({one.user for one in said if one.user})
    known = [f"user {' and '.join(users)}"] if users else []
    used = sum(one.number("used_memory") for one in said)
    known += [f"{size(used)} in use"] if used else []
    up = [one.number("uptime_in_seconds") for one in said if "uptime_in_seconds" in one.info]
    return [*known, f"up {duration(1000 * min(up))}"] if up else known


def _screen(head: str, known: Iterable[str], found: Sequence[Finding], groups: dict[frozenset[str], str]) -> None:
    """groups: names of sets of nodes."""
    from rich.table import Table
    from rich.text import Text

    from spark_streams.doctor.finding import Level

    screen = console()
    screen.width = min(screen.width, _MOST)
    screen.print(Text(printable(head), style="bold"))
    screen.print(Text(printable(", ".join(one for one in known if one))))
    table = Table.grid(padding=(0, 2))
    for width in (7, 11, None):
        table.add_column(width=width)
    for one in found:
        text = Text(printable(one.said))
        for title, words in (("On", _where(one, groups)), ("Then", one.effect), ("Do", one.remedy)):
            if words:
                text.append(f"\n{title}: ", style="bold").append(printable(words))
        table.add_row(Text(one.level, style=_STYLES[one.level]), one.about, text)
        if one.level != Level.OK:
            table.add_row()
    screen.print()
    screen.print(table)
    screen.print()
    screen.print(Text(_verdict(found)))


def _where(one: Finding, groups: dict[frozenset[str], str]) -> str:
    """Return the nodes of a finding; nothing if it is OK for all nodes."""
    from spark_streams.doctor.finding import Level

    if not one.nodes:
        return ""
    called = groups.get(frozenset(one.nodes))
    if called is not None:
        return "" if one.level == Level.OK else called
    every = max(groups, key=len)
    others = sorted(every - set(one.nodes))
    if every.issuperset(one.nodes) and len(others) < min(_NODES, len(one.nodes)):
        return f"all nodes but {', '.join(others)}"
    rest = len(one.nodes) - _NODES
    return ", ".join(one.nodes[:_NODES]) + (f" and {rest} more (--json has all)" if rest > 0 else "")


def _verdict(found: Sequence[Finding]) -> str:
    from spark_streams.doctor.finding import Level

    counts = {level: sum(one.level is level for one in found) for level in (Level.DANGER, Level.WARNING)}
    if not any(counts.values()):
        return "nothing worse than a note"
    return ", ".join(f"{count} {level if count == 1 else f'{level}s'}" for level, count in counts.items() if count)
