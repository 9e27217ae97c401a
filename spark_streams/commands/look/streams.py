"""`rstream streams`: list the streams of a server."""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_streams.commands.shared import connect, json_option, print_json, print_table, url_option


@click.command(short_help="List the streams of a server.")
@url_option
@json_option
def streams(url: str, as_json: bool) -> None:
    """List all streams of the server: entries, last ID, groups. Streams in which entries wait for a retry are left out;
    `rstream dead list` and `rstream lag` show them.

    \b
    Examples:
      rstream streams
      rstream streams --url redis://user:password@host:6379/0
      rstream streams --json | jq '.[] | select(.length > 1000000) | .stream'
    """
    from spark_streams.monitor.groups import view_streams
    from spark_streams.wire.replies.scan import list_streams, without_retry_streams

    with connect(url) as server:
        views = view_streams(server, without_retry_streams(list_streams(server)))
    if as_json:
        print_json([asdict(view) for view in views])
        return
    print_table(
        ("stream", "entries", "ever added", "last id", "groups"),
        [(v.stream, v.length, v.added, v.last, ", ".join(g.group for g in v.groups) or "-") for v in views],
    )
