"""`rstream streams` and `rstream groups`: what the server holds, and who reads it."""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_streams.commands.shared import connect, json_option, named_streams, print_json, print_table, url_option


@click.command(short_help="What the server holds.")
@url_option
@json_option
def streams(url: str, as_json: bool) -> None:
    """All streams of the server: entries, last id, groups.

    \b
    Examples:
      rstream streams
      rstream streams --url redis://user:password@host:6379/0
      rstream streams --json | jq '.[] | select(.length > 1000000) | .stream'
    """
    from spark_streams.monitor.groups import view_streams
    from spark_streams.wire.scan import list_streams

    with connect(url) as server:
        views = view_streams(server, list_streams(server))
    if as_json:
        print_json([asdict(view) for view in views])
        return
    print_table(
        ("stream", "entries", "ever added", "last id", "groups"),
        [(v.stream, v.length, v.added, v.last, ", ".join(g.group for g in v.groups) or "-") for v in views],
    )


@click.command(short_help="Who reads what, and how far they are.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@url_option
@json_option
def groups(names: tuple[str, ...], url: str, as_json: bool) -> None:
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
        views = view_streams(server, named_streams(server, names))
    found = [group for view in views for group in view.groups]
    if as_json:
        print_json([asdict(group) for group in found])
        return
    print_table(
        ("stream", "group", "consumers", "lag", "pending", "last delivered"),
        [(g.stream, g.group, g.consumers, g.lag, g.pending, g.last_delivered) for g in found],
    )
