"""`rstream doctor`: check a server's settings, and the rights of the URL's user."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from spark_streams.base.numbers import parse_number
from spark_streams.operations.commands.shared import address_of, json_option, print_json, url_option

if TYPE_CHECKING:
    from spark_streams.connector.wire.address.address import Address
    from spark_streams.operations.doctor.cluster import ClusterFacts, Member
    from spark_streams.operations.doctor.finding import Finding
    from spark_streams.operations.doctor.server_facts import ServerFacts

NOT_WELL = 3  # exit code


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

    Exit codes: 0 nothing worse than a note; 3 a warning or a danger; 1 the check failed. Nothing on the server changes:
    commands are queued and discarded (MULTI, DISCARD). Refused commands may appear in the server's ACL LOG. The
    server's clock is compared with this machine's, so run the command on the driver's machine. In a cluster every node
    is checked; a finding of several nodes is printed once with their names.

    \b
    Examples:
      rstream doctor redis://redis.internal:6379/0 --stream orders --for reading
      rstream doctor redis+cluster://a:6379,b:6379
      rstream doctor --json | jq '.findings[] | select(.level == "danger")'
      rstream doctor || send-alert
    """
    from spark_streams.operations.doctor.finding import Level, worst
    from spark_streams.operations.doctor.rights import USES

    address = address_of(server_url or url)
    examine = _at_cluster if address.is_cluster else _at_one
    findings = examine(address, uses or USES, names, as_json)
    if worst(findings) in (Level.WARNING, Level.DANGER):
        sys.exit(NOT_WELL)


def _at_one(address: Address, uses: Sequence[str], names: Sequence[str], as_json: bool) -> list[Finding]:
    from spark_streams.connector.wire.connect import connect
    from spark_streams.operations.commands.look.findings_screen import show
    from spark_streams.operations.doctor.examination import examine
    from spark_streams.operations.doctor.finding import sorted_by_level
    from spark_streams.operations.doctor.held import check

    with connect(address) as server:
        [node] = server.nodes()
        facts, findings = examine(node, uses, names)
        findings = sorted_by_level([*findings, *check(server, names, facts.number("used_memory"))])
    if as_json:
        _print_json({"server": _about(facts)}, findings)
    else:
        show(facts, findings)
    return findings


def _at_cluster(address: Address, uses: Sequence[str], names: Sequence[str], as_json: bool) -> list[Finding]:
    from spark_streams.operations.commands.look.findings_screen import show_cluster
    from spark_streams.operations.doctor.cluster import examine
    from spark_streams.operations.doctor.finding import sorted_by_level
    from spark_streams.operations.doctor.held import check_cluster

    facts, findings = examine(address, uses, names)
    findings = sorted_by_level([*findings, *check_cluster(address, names, facts.used_memory)])
    if as_json:
        _print_json({"cluster": _about_cluster(facts)}, findings)
    else:
        show_cluster(facts, findings)
    return findings


def _print_json(about: dict[str, object], findings: Sequence[Finding]) -> None:
    from spark_streams.operations.doctor.finding import worst

    print_json({**about, "worst": worst(findings), "findings": [finding.for_json() for finding in findings]})


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
    from spark_streams.operations.doctor.cluster import name_of

    server_facts = {} if member.facts is None else _about(member.facts)
    slots = None if cluster.map is None else sum(owner == member.node for owner in cluster.map.owners)
    role = "master" if member.master is None else "replica"
    place = {"address": member.name, "role": role, "reached": member.facts is not None, "slots": slots}
    return {**server_facts, **place, "replica_of": None if member.master is None else name_of(member.master)}
