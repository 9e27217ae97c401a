"""`rstream streams` and `rstream groups`: what the server holds, and who reads it."""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_streams.commands.shared import connect, json_option, print_json, print_table, url_option


@click.command()
@url_option
@json_option
def streams(url: str, as_json: bool) -> None:
    """All streams of the server: entries, last id, groups."""
    from spark_streams.monitor.groups import list_streams, view_streams

    with connect(url) as server:
        views = view_streams(server, list_streams(server))
    if as_json:
        print_json([asdict(view) for view in views])
        return
    print_table(
        ("stream", "entries", "ever added", "last id", "groups"),
        [(v.stream, v.length, v.added, v.last, ", ".join(g.group for g in v.groups) or "-") for v in views],
    )


@click.command()
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@url_option
@json_option
def groups(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """The consumer groups of some streams (default: all): lag, pending, position.

    lag: entries that the group has yet to be given; pending: given, and not acknowledged.
    """
    from spark_streams.monitor.groups import list_streams, view_streams

    with connect(url) as server:
        views = view_streams(server, names or list_streams(server))
        where = str(server.address)
    missing = [name for name in names if name not in {view.stream for view in views}]
    if missing:
        raise click.ClickException(f"no stream {', '.join(missing)} at {where}; rstream streams lists what is there")
    found = [group for view in views for group in view.groups]
    if as_json:
        print_json([asdict(group) for group in found])
        return
    print_table(
        ("stream", "group", "consumers", "lag", "pending", "last delivered"),
        [(g.stream, g.group, g.consumers, g.lag, g.pending, g.last_delivered) for g in found],
    )
