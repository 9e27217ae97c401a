"""`rstream doctor`: check a server's settings, and the rights of the URL's user."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from spark_streams.base.numbers import parse_number
from spark_streams.base.printable import printable
from spark_streams.base.units import binary_size, counted, duration
from spark_streams.operations.commands.exit_codes import CHECK_FAILED, found
from spark_streams.operations.commands.shared import address_of, console, json_option, print_json, url_option
from spark_streams.operations.doctor.server_facts import Level, ServerFacts, ServerFinding, sorted_by_level, worst

if TYPE_CHECKING:
    from spark_streams.operations.doctor.examination import ClusterFacts, Member


_STYLES = {"danger": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}
_MOST = 100  # columns: longer lines are hard to read
_NODES = 4  # that are named


def show(facts: ServerFacts, findings: Sequence[ServerFinding]) -> None:
    """Print the findings of one server."""
    head = f"{facts.kind} {facts.version}".strip() + f" at {facts.address}"
    database = [f"database {facts.database}"] if facts.database else []
    _screen(head, [facts.mode, facts.role or "", *database, *_of_all([facts])], findings, {})


def show_cluster(facts: ClusterFacts, findings: Sequence[ServerFinding]) -> None:
    """Print the findings of a cluster."""
    servers = list(facts.reached.values())
    versions = sorted({f"{server.kind} {server.version}".strip() for server in servers})
    facts_line = [f"{len(facts.members)} nodes of the URL"]
    if facts.map is not None:
        covered, total = facts.covered or 0, len(facts.map.owners)
        replicas = sum(member.master is not None for member in facts.members)
        masters = len(facts.members) - replicas
        facts_line = [counted(masters, "master"), counted(replicas, "replica")]
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


def _of_all(servers: Sequence[ServerFacts]) -> list[str]:
    """Return the users, the sum of the memory, and the shortest uptime."""
    users = sorted({server.user for server in servers if server.user})
    facts = [f"user {' and '.join(users)}"] if users else []
    used = sum(server.number("used_memory") for server in servers)
    facts += [f"{binary_size(used)} in use"] if used else []
    uptimes = [server.number("uptime_in_seconds") for server in servers if "uptime_in_seconds" in server.info]
    return [*facts, f"up {duration(1000 * min(uptimes))}"] if uptimes else facts


def _screen(
    head: str, facts: Iterable[str], findings: Sequence[ServerFinding], groups: dict[frozenset[str], str]
) -> None:
    """groups: names of sets of nodes."""
    from rich.table import Table
    from rich.text import Text

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
        if finding.level != "ok":
            table.add_row()
    screen.print()
    screen.print(table)
    screen.print()
    screen.print(Text(_verdict(findings)))


def _where(finding: ServerFinding, groups: dict[frozenset[str], str]) -> str:
    """Return the nodes of a finding; nothing if it is OK for all nodes."""
    if not finding.nodes:
        return ""
    group_name = groups.get(frozenset(finding.nodes))
    if group_name is not None:
        return "" if finding.level == "ok" else group_name
    all_nodes = max(groups, key=len)
    other_nodes = sorted(all_nodes - set(finding.nodes))
    if all_nodes.issuperset(finding.nodes) and len(other_nodes) < min(_NODES, len(finding.nodes)):
        return f"all nodes but {', '.join(other_nodes)}"
    unnamed = len(finding.nodes) - _NODES
    return ", ".join(finding.nodes[:_NODES]) + (f" and {unnamed} more (--json has all)" if unnamed > 0 else "")


def _verdict(findings: Sequence[ServerFinding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in ("danger", "warning")}
    return ", ".join(counted(count, level) for level, count in counts.items() if count) or "nothing worse than a note"


@click.command(short_help="Check a server's settings and a user's rights.")
@click.argument("server_url", metavar="[URL]", required=False)
@click.option(
    "--stream", "names", metavar="STREAM", multiple=True, help="Stream whose rights and groups are checked; repeatable."
)
@click.option(
    "--for",
    "uses",
    type=click.Choice(["looking", "reading", "writing", "redrive"]),
    multiple=True,
    help="What the user of the URL must be allowed to do; repeatable.  [default: all of these]",
)
@url_option
@json_option
def doctor(server_url: str | None, names: tuple[str, ...], uses: tuple[str, ...], url: str, as_json: bool) -> None:
    """Check the server at URL: settings that endanger streams, with the effect and what to set; rights that the user of
    the URL lacks; and groups that nobody uses, of all streams or of --stream.

    \b
    danger    entries will be lost, or nothing can be written
    warning   entries may be lost, or a query may stop
    note      worth knowing; often intended
    ok        correct

    Exit codes: 0 nothing worse than a note; 3 a warning or a danger; 1 the check failed. Nothing changes: commands are
    queued and discarded (MULTI, DISCARD). Refused ones may appear in the server's ACL LOG. Run it on the driver's
    machine, because it compares clocks. In a cluster every node is checked; a finding of several nodes is printed once
    with their names.

    \b
    Examples:
      rstream doctor redis://redis.internal:6379/0 --stream orders --for reading
      rstream doctor --json | jq '.findings[] | select(.level == "danger")'
      rstream doctor || send-alert
    """
    from spark_streams.connector.wire.connect import connect
    from spark_streams.operations.doctor.examination import examine_cluster, examine_server
    from spark_streams.operations.doctor.rights import USES
    from spark_streams.operations.doctor.stream_findings import check_groups

    address = address_of(server_url or url)
    about: dict[str, object]
    if address.is_cluster:
        cluster, findings = examine_cluster(address, uses or USES, names)
        used, about = cluster.used_memory, {"cluster": _about_cluster(cluster)}
        print_all = partial(show_cluster, cluster)
    else:
        with connect(address) as server:
            [node] = server.nodes()
            facts, findings = examine_server(node, uses or USES, names)
        used, about = facts.number("used_memory"), {"server": _about(facts)}
        print_all = partial(show, facts)
    findings = sorted_by_level([*findings, *check_groups(address, names, used)])
    if worst(findings) in (Level.WARNING, Level.DANGER):
        found(CHECK_FAILED)
    if as_json:
        print_json({**about, "worst": worst(findings), "findings": [finding.for_json() for finding in findings]})
    else:
        print_all(findings)


def _about(facts: ServerFacts) -> dict[str, object]:
    """Return the facts of a server for JSON. A fact is null if the server does not report it."""
    return {
        "address": facts.address,
        "kind": facts.kind,
        "version": facts.version or None,
        "mode": facts.mode or None,
        "role": facts.role,
        "database": parse_number(facts.database),
        "user": facts.user or None,
        "used_memory": facts.number("used_memory") or None,
        "maxmemory": facts.number("maxmemory") if "maxmemory" in facts.info else None,
        "uptime_seconds": facts.number("uptime_in_seconds") if "uptime_in_seconds" in facts.info else None,
        "clock_ahead_ms": None if facts.clock is None else round(facts.clock.ahead_ms),
    }


def _about_cluster(facts: ClusterFacts) -> dict[str, object]:
    """Return the facts of each node for JSON. slots_covered is null if the user may not read the slots."""
    return {
        "address": facts.address,
        "slots_covered": facts.covered,
        "nodes": [_about_member(facts, member) for member in facts.members],
    }


def _about_member(cluster: ClusterFacts, member: Member) -> dict[str, object]:
    from spark_streams.operations.doctor.examination import name_of

    server_facts = {} if member.facts is None else _about(member.facts)
    slots = None if cluster.map is None else sum(owner == member.node for owner in cluster.map.owners)
    role = "master" if member.master is None else "replica"
    place = {"address": member.name, "role": role, "reached": member.facts is not None, "slots": slots}
    return {**server_facts, **place, "replica_of": None if member.master is None else name_of(member.master)}
