"""`rstream streams`: list the streams of a server."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_streams.operations.commands.shared import connect, json_option, print_json, print_table, url_option

if TYPE_CHECKING:
    from spark_streams.connector.lag.survey import GroupView, StreamView

_OF_ADDS = ("idempotent", "duplicates")  # columns


@click.command(short_help="List the streams of a server.")
@url_option
@json_option
def streams(url: str, as_json: bool) -> None:
    """List all streams of the server: entries, last ID, groups. Streams in which entries wait for a retry are left out;
    `rstream dead list` and `rstream lag` show them.

    \b
    groups       with the number of entries that a consumer released (XNACK) and no consumer has taken
    idempotent   entries ever added with XADD IDMP or IDMPAUTO (Redis 8.6), if there are any
    duplicates   repeated adds of these, which added nothing

    \b
    Examples:
      rstream streams
      rstream streams --url redis://user:password@host:6379/0
      rstream streams --json | jq '.[] | select(.length > 1000000) | .stream'
    """
    from spark_streams.connector.lag.survey import view_streams
    from spark_streams.connector.wire.replies.scan import list_streams, without_retry_streams

    with connect(url) as server:
        views = view_streams(server, without_retry_streams(list_streams(server)), count_released=True)
    if as_json:
        print_json([asdict(view) for view in views])
        return
    counts_adds = any(view.idempotent for view in views)
    print_table(
        ("stream", "entries", "ever added", *(_OF_ADDS if counts_adds else ()), "last id", "groups"),
        [
            (
                v.stream,
                v.length,
                v.added,
                *(_adds(v) if counts_adds else ()),
                v.last,
                ", ".join(map(_name, v.groups)) or "-",
            )
            for v in views
        ],
    )


def _adds(view: StreamView) -> tuple[int, int]:
    return (view.idempotent.added, view.idempotent.duplicates) if view.idempotent else (0, 0)


def _name(group: GroupView) -> str:
    return f"{group.group} ({group.released:,} released)" if group.released else group.group
