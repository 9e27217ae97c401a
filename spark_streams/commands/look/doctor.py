"""`rstream doctor`: what a server is, what of its settings endangers streams, and which rights the url's user lacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from spark_streams.commands.shared import address_of, json_option, print_json, url_option
from spark_streams.model.numbers import parse_number

if TYPE_CHECKING:
    from spark_streams.doctor.cluster import ClusterFacts, Member
    from spark_streams.doctor.finding import Finding
    from spark_streams.doctor.server_facts import ServerFacts
    from spark_streams.wire.address.address import Address

NOT_WELL = 3  # exit code


@click.command(short_help="Whether a server is fit for streams, and its user for a use.")
@click.argument("server_url", metavar="[URL]", required=False)
@click.option("--stream", "names", metavar="STREAM", multiple=True, help="Whose rights are looked at; repeatable.")
@click.option(
    "--for",
    "uses",
    type=click.Choice(["looking", "reading", "writing", "redrive"]),
    multiple=True,
    help="What the url's user is to be allowed; repeatable.  [default: all of these]",
)
@url_option
@json_option
def doctor(server_url: str | None, names: tuple[str, ...], uses: tuple[str, ...], url: str, as_json: bool) -> None:
    """What the server at URL is and can do; settings that endanger streams, what the connector will do about each and
    what to set; and which rights the url's user lacks.

    \b
    danger    entries will be lost, or nothing can be written
    warning   entries may be lost, or a query may stop
    note      worth knowing, and right for many
    ok        as it should be

    Exit code 0: nothing worse than a note; 3: a warning or a danger; 1: it could not be found out. Nothing on the
    server changes: commands are tried by queueing them and dropping the queue (MULTI, DISCARD). Clocks are compared
    with this machine's: run it where the driver runs. A server that logs refused commands (ACL LOG) logs these. In a
    cluster every node is asked, and a finding of several nodes is printed once with their names.

    \b
    Examples:
      rstream doctor redis://billing:secret@redis.internal:6379/0 --stream orders --for reading
      rstream doctor redis+cluster://a:6379,b:6379
      rstream doctor --json | jq '.findings[] | select(.level == "danger")'
      rstream doctor || page-somebody
    """
    from spark_streams.doctor.finding import Level, worst
    from spark_streams.doctor.rights import USES

    address = address_of(server_url or url)
    look = _at_cluster if address.is_cluster else _at_one
    found = look(address, uses or USES, names, as_json)
    if worst(found) in (Level.WARNING, Level.DANGER):
        sys.exit(NOT_WELL)


def _at_one(address: Address, uses: Sequence[str], names: Sequence[str], as_json: bool) -> list[Finding]:
    from spark_streams.commands.look.findings_screen import show
    from spark_streams.doctor.examination import examine
    from spark_streams.wire.connect import connect

    with connect(address) as server:
        [one] = server.nodes()
        facts, found = examine(one, uses, names)
    if as_json:
        _print_json({"server": _about(facts)}, found)
    else:
        show(facts, found)
    return found


def _at_cluster(address: Address, uses: Sequence[str], names: Sequence[str], as_json: bool) -> list[Finding]:
    from spark_streams.commands.look.findings_screen import show_cluster
    from spark_streams.doctor.cluster import examine

    facts, found = examine(address, uses, names)
    if as_json:
        _print_json({"cluster": _about_cluster(facts)}, found)
    else:
        show_cluster(facts, found)
    return found


def _print_json(about: dict[str, object], found: Sequence[Finding]) -> None:
    from spark_streams.doctor.finding import worst

    print_json({**about, "worst": worst(found), "findings": [one.for_json() for one in found]})


def _about(facts: ServerFacts) -> dict[str, object]:
    """What it is, for programs; null where it does not say."""
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
    """The same for each node; slots_covered is null if the user may not ask for the slots."""
    return {
        "address": facts.address,
        "slots_covered": facts.covered,
        "nodes": [_about_member(facts, one) for one in facts.members],
    }


def _about_member(cluster: ClusterFacts, member: Member) -> dict[str, object]:
    from spark_streams.doctor.cluster import name_of

    told = {} if member.facts is None else _about(member.facts)
    slots = None if cluster.map is None else sum(owner == member.node for owner in cluster.map.owners)
    role = "master" if member.master is None else "replica"
    where = {"address": member.name, "role": role, "reached": member.facts is not None, "slots": slots}
    return {**told, **where, "replica_of": None if member.master is None else name_of(member.master)}
