"""`rstream doctor`: what a server is, what of its settings endangers streams, and which rights the url's user lacks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from spark_streams.commands.shared import connect, console, json_option, print_json, url_option
from spark_streams.errors import UnsupportedError

if TYPE_CHECKING:
    from spark_streams.doctor.finding import Finding
    from spark_streams.doctor.server_facts import ServerFacts

NOT_WELL = 3  # exit code
_STYLES = {"danger": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}
_MOST = 100  # columns: longer lines are hard to read


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
    with this machine's: run it where the driver runs. A server that logs refused commands (ACL LOG) logs these.

    \b
    Examples:
      rstream doctor redis://billing:secret@redis.internal:6379/0 --stream orders --for reading
      rstream doctor --json | jq '.findings[] | select(.level == "danger")'
      rstream doctor || page-somebody
    """
    from spark_streams.doctor.examination import examine
    from spark_streams.doctor.finding import Level, worst
    from spark_streams.doctor.rights import USES
    from spark_streams.wire.connection import Connection

    with connect(server_url or url) as server:
        if not isinstance(server, Connection):
            raise UnsupportedError(
                f"rstream doctor looks at one server, and {server.address} is a cluster: give it each node's address, "
                "redis:// in place of redis+cluster://"
            )
        facts, found = examine(server, uses or USES, names)
    if as_json:
        print_json({"server": _about(facts), "worst": worst(found), "findings": [one.for_json() for one in found]})
    else:
        _print(facts, found)
    if worst(found) in (Level.WARNING, Level.DANGER):
        sys.exit(NOT_WELL)


def _about(facts: ServerFacts) -> dict[str, Any]:
    """What it is, for programs; null where it does not say."""
    return {
        "address": facts.address,
        "kind": facts.kind,
        "version": facts.version or None,
        "mode": facts.mode or None,
        "role": facts.role,
        "database": int(facts.database) if facts.database else None,
        "user": facts.user or None,
        "used_memory": facts.number("used_memory") or None,
        "maxmemory": facts.number("maxmemory") if "maxmemory" in facts.info else None,
        "uptime_seconds": facts.number("uptime_in_seconds") if "uptime_in_seconds" in facts.info else None,
        "clock_ahead_ms": None if facts.clock is None else round(facts.clock.ahead_ms),
    }


def _print(facts: ServerFacts, found: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from spark_streams.doctor.finding import Level
    from spark_streams.monitor.terminal.units import printable

    screen = console()
    screen.width = min(screen.width, _MOST)
    screen.print(Text(printable(f"{facts.kind} {facts.version}".strip() + f" at {facts.address}"), style="bold"))
    screen.print(Text(printable(_in_a_line(facts))))
    table = Table.grid(padding=(0, 2))
    for width in (7, 11, None):
        table.add_column(width=width)
    for one in found:
        text = Text(printable(one.said))
        for head, words in (("Then: ", one.effect), ("Do: ", one.remedy)):
            if words:
                text.append(f"\n{head}", style="bold").append(printable(words))
        table.add_row(Text(one.level, style=_STYLES[one.level]), one.about, text)
        if one.level != Level.OK:
            table.add_row()
    screen.print()
    screen.print(table)
    screen.print()
    screen.print(Text(_verdict(found)))


def _in_a_line(facts: ServerFacts) -> str:
    from spark_streams.doctor.server_facts import size
    from spark_streams.monitor.terminal.units import duration

    known = [facts.mode, facts.role or ""]
    known += [f"database {facts.database}" if facts.database else "", f"user {facts.user}" if facts.user else ""]
    if "used_memory" in facts.info:
        known.append(f"{size(facts.number('used_memory'))} in use")
    if "uptime_in_seconds" in facts.info:
        known.append(f"up {duration(1000 * facts.number('uptime_in_seconds'))}")
    return ", ".join(one for one in known if one)


def _verdict(found: list[Finding]) -> str:
    from spark_streams.doctor.finding import Level

    counts = {level: sum(one.level is level for one in found) for level in (Level.DANGER, Level.WARNING)}
    if not any(counts.values()):
        return "nothing worse than a note"
    return ", ".join(f"{count} {level if count == 1 else f'{level}s'}" for level, count in counts.items() if count)
