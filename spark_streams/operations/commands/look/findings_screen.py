"""Print the findings of `rstream doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spark_streams.base.printable import printable
from spark_streams.base.units import duration
from spark_streams.operations.commands.shared import console

if TYPE_CHECKING:
    from spark_streams.operations.doctor.cluster import ClusterFacts
    from spark_streams.operations.doctor.finding import Finding
    from spark_streams.operations.doctor.server_facts import ServerFacts

_STYLES = {"danger": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}
_MOST = 100  # columns: longer lines are hard to read
_NODES = 4  # that are named


def show(facts: ServerFacts, findings: Sequence[Finding]) -> None:
    """Print the findings of one server."""
    head = f"{facts.kind} {facts.version}".strip() + f" at {facts.address}"
    database = [f"database {facts.database}"] if facts.database else []
    _screen(head, [facts.mode, facts.role or "", *database, *_of_all([facts])], findings, {})


def show_cluster(facts: ClusterFacts, findings: Sequence[Finding]) -> None:
    """Print the findings of a cluster."""
    servers = list(facts.reached.values())
    versions = sorted({f"{server.kind} {server.version}".strip() for server in servers})
    facts_line = [f"{len(facts.members)} nodes of the URL"]
    if facts.map is not None:
        covered, total = facts.covered or 0, len(facts.map.owners)
        replicas = sum(member.master is not None for member in facts.members)
        masters = len(facts.members) - replicas
        facts_line = [_counted(masters, "master"), _counted(replicas, "replica")]
        facts_line.append(f"{'all' if covered == total else f'{covered:,} of'} {total:,} slots")
    head = f"{' and '.join(versions) or 'A cluster'} at {facts.address}"
    _screen(head, ["cluster", *facts_line, *_of_all(servers)], findings, _groups(facts))


def _groups(facts: ClusterFacts) -> dict[frozenset[str], str]:
    """Return the names of sets of nodes. If two sets are the same nodes, the later name is used."""
    replicas = [member.name for member in facts.members if member.master is not None]
    together = {
        "that are reached": [member.name for member in facts.reached],
        "replicas": replicas,
        "masters": [member.name for member in facts.members if facts.map is not None and member.master is None],
        "nodes": [member.name for member in facts.members],
    }
    names = {}
    for label, nodes in together.items():
        nouns = f"nodes {label}" if label.startswith("that") else label
        names[frozenset(nodes)] = f"all {len(nodes)} {nouns}" if len(nodes) > 1 else ", ".join(nodes)
    return names


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else f'{noun}s'}"


def _of_all(servers: Sequence[ServerFacts]) -> list[str]:
    """Return the users, the sum of the memory, and the shortest uptime."""
    from spark_streams.base.sizes import size

    users = sorted({server.user for server in servers if server.user})
    facts = [f"user {' and '.join(users)}"] if users else []
    used = sum(server.number("used_memory") for server in servers)
    facts += [f"{size(used)} in use"] if used else []
    uptimes = [server.number("uptime_in_seconds") for server in servers if "uptime_in_seconds" in server.info]
    return [*facts, f"up {duration(1000 * min(uptimes))}"] if uptimes else facts


def _screen(head: str, facts: Iterable[str], findings: Sequence[Finding], groups: dict[frozenset[str], str]) -> None:
    """groups: names of sets of nodes."""
    from rich.table import Table
    from rich.text import Text

    from spark_streams.operations.doctor.finding import Level

    screen = console()
    screen.width = min(screen.width, _MOST)
    screen.print(Text(printable(head), style="bold"))
    screen.print(Text(printable(", ".join(fact for fact in facts if fact))))
    table = Table.grid(padding=(0, 2))
    for width in (7, 11, None):
        table.add_column(width=width)
    for finding in findings:
        text = Text(printable(finding.observation))
        for title, words in (("On", _where(finding, groups)), ("Then", finding.effect), ("Do", finding.remedy)):
            if words:
                text.append(f"\n{title}: ", style="bold").append(printable(words))
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.about, text)
        if finding.level != Level.OK:
            table.add_row()
    screen.print()
    screen.print(table)
    screen.print()
    screen.print(Text(_verdict(findings)))


def _where(finding: Finding, groups: dict[frozenset[str], str]) -> str:
    """Return the nodes of a finding; nothing if it is OK for all nodes."""
    from spark_streams.operations.doctor.finding import Level

    if not finding.nodes:
        return ""
    group_name = groups.get(frozenset(finding.nodes))
    if group_name is not None:
        return "" if finding.level == Level.OK else group_name
    all_nodes = max(groups, key=len)
    other_nodes = sorted(all_nodes - set(finding.nodes))
    if all_nodes.issuperset(finding.nodes) and len(other_nodes) < min(_NODES, len(finding.nodes)):
        return f"all nodes but {', '.join(other_nodes)}"
    unnamed = len(finding.nodes) - _NODES
    return ", ".join(finding.nodes[:_NODES]) + (f" and {unnamed} more (--json has all)" if unnamed > 0 else "")


def _verdict(findings: Sequence[Finding]) -> str:
    from spark_streams.operations.doctor.finding import Level

    counts = {level: sum(finding.level is level for finding in findings) for level in (Level.DANGER, Level.WARNING)}
    if not any(counts.values()):
        return "nothing worse than a note"
    return ", ".join(f"{count} {level if count == 1 else f'{level}s'}" for level, count in counts.items() if count)
