"""`rstream groups`: list consumer groups. Each command that changes them has its own file."""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_streams.operations.commands.groups.claim_pending import ack, claim
from spark_streams.operations.commands.groups.delete_group import delete
from spark_streams.operations.commands.groups.prune import prune
from spark_streams.operations.commands.groups.release_pending import release
from spark_streams.operations.commands.groups.seek import create, seek
from spark_streams.operations.commands.names import named_streams
from spark_streams.operations.commands.shared import Group, connect, json_option, print_json, print_table, url_option


class _ListsByItself(Group):
    """A command group whose default command is `list`: `rstream groups orders`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByItself, short_help="List groups; seek, claim, release, ack, delete, create, prune.")
def groups() -> None:
    """List consumer groups and their positions (`rstream groups [STREAM]...`), and manage them.

    A command that changes something is a dry run without --yes: it prints exactly what would change. It refuses to
    change a group or consumer of a running query. STREAM may be a pattern (`orders:*`): all matching streams that have
    the group. If a stream has the name of a command, write: rstream groups list seek.

    \b
    Examples:
      rstream groups                     all groups of all streams
      rstream groups orders payments
      rstream groups seek orders --group etl --to 1h
    """


@groups.command("list")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@url_option
@json_option
def list_(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """List the consumer groups of streams (default: all streams): lag, pending entries, position.

    \b
    lag       entries not yet delivered to the group, as the server counts them;
              ? if the server cannot count them (rstream lag does)
    pending   entries delivered and not acknowledged
    released  pending entries that a consumer released (XNACK): the group's next reader takes them;
              ? if the user may not list pending entries

    \b
    Examples:
      rstream groups
      rstream groups orders payments
    """
    from spark_streams.connector.lag.survey import view_streams

    with connect(url) as server:
        views = view_streams(server, named_streams(server, names, with_retry_streams=True), count_released=True)
    group_views = [group for view in views for group in view.groups]
    if as_json:
        print_json([asdict(group) for group in group_views])
        return
    print_table(
        ("stream", "group", "consumers", "lag", "pending", "released", "last delivered"),
        [(g.stream, g.group, g.consumers, g.lag, g.pending, g.released, g.last_delivered) for g in group_views],
    )


for _command in (seek, claim, release, ack, delete, create, prune):
    groups.add_command(_command)
