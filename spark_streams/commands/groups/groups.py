"""`rstream groups`: who reads what; and the hands that change it, each in a file of its own."""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_streams.commands.groups.claim_pending import ack, claim
from spark_streams.commands.groups.delete_group import delete
from spark_streams.commands.groups.prune import prune
from spark_streams.commands.groups.release_pending import release
from spark_streams.commands.groups.seek import create, seek
from spark_streams.commands.shared import connect, json_option, named_streams, print_json, print_table, url_option


class _ListsByItself(click.Group):
    """Without one of its commands it is `list`: `rstream groups orders`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByItself, short_help="Who reads what; seek, claim, release, ack, delete, create, prune.")
def groups() -> None:
    """Consumer groups: who reads what and how far they are (`rstream groups [STREAM]...`), and hands on them.

    What changes something is a dry run unless --yes: it prints exactly what would change. Refused is what would touch a
    group or consumer in which a query lives. STREAM may be a pattern (`orders:*`): its streams that have the group. A
    stream that is called like a command: rstream groups list seek.

    \b
    Examples:
      rstream groups                                                    all groups of all streams
      rstream groups orders payments
      rstream groups seek orders --group etl --to 1h                    what reading the last hour again would mean
      rstream groups seek orders --group etl --to latest --yes
      rstream groups claim orders --group etl --from bob --to spark --idle 5m --yes
      rstream groups release orders --group etl --consumer bob --yes
      rstream groups ack orders --group etl --consumer bob --last-id 1795163834542-0 --yes
      rstream groups delete orders --group etl --consumer bob
      rstream groups prune --idle 7d                                    groups that nobody reads from any more
      rstream groups create 'orders:*' --group etl --start latest --yes
    """


@groups.command("list")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@url_option
@json_option
def list_(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """The consumer groups of some streams (default: all): lag, pending, position.

    lag: entries that the group has yet to be given, as the server counts them (rstream lag counts where it cannot);
    pending: given, and not acknowledged.

    \b
    Examples:
      rstream groups
      rstream groups orders payments
    """
    from spark_streams.monitor.groups import view_streams

    with connect(url) as server:
        views = view_streams(server, named_streams(server, names, beside=True))
    found = [group for view in views for group in view.groups]
    if as_json:
        print_json([asdict(group) for group in found])
        return
    print_table(
        ("stream", "group", "consumers", "lag", "pending", "last delivered"),
        [(g.stream, g.group, g.consumers, g.lag, g.pending, g.last_delivered) for g in found],
    )


for _command in (seek, claim, release, ack, delete, create, prune):
    groups.add_command(_command)
