"""`rstream wait`: end when a group has something to read."""

from __future__ import annotations

import math
import sys

import click

from spark_streams.base.units import counted
from spark_streams.operations.commands.names import exact_option, resolve_streams
from spark_streams.operations.commands.shared import address_of, milliseconds, say, url_option

NO_WORK = 3  # exit code


@click.command(short_help="Wait until a group has something to read.")
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--group", required=True, help="The consumer group.")
@click.option(
    "--lag", "entries", type=click.IntRange(1), default=1, show_default=True, help="Wait for this number of entries."
)
@click.option(
    "--for", "most", metavar="DURATION", callback=milliseconds, help="Maximum time to wait, as 10m.  [default: none]"
)
@click.option("--must-exist", is_flag=True, help="Fail if a stream, or the group on it, does not exist.")
@exact_option
@url_option
def wait(
    names: tuple[str, ...], group: str, entries: int, most: int | None, must_exist: bool, exact: bool, url: str
) -> None:
    """Wait until the group has at least --lag undelivered entries in these streams together.

    Exit codes: 0 it has; 3 the time of --for is over; 1 the server does not answer, a key is not a stream, or something
    is missing (--must-exist). Nothing on the server changes.

    A stream or group need not exist yet; the command says so on standard error, because the name may be misspelt. In a
    stream without this group all entries count, as for a query that starts with startingOffsets=earliest. With
    --must-exist this is an error, at the start and when the time of --for is over.

    A pattern is replaced by the streams that match it at the start. Pending entries do not count, and neither do
    entries that wait for a retry.

    The command sends at most one command a second to the server, on average. While nothing is added it sends two a
    minute and one per stream.

    \b
    Examples:
      rstream wait orders --group etl && rstream run etl --config etl.toml
      rstream wait orders payments --group etl --lag 10000 --for 10m
    """
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.monitor.undelivered import find_missing, wait_for_entries

    with Session(address_of(url), "rstream wait") as session:
        streams = session.run(lambda server: resolve_streams(server, names, None, exact))
        missing = session.run(lambda server: find_missing(server, streams, group))
        if not must_exist:
            for error in missing:
                say(
                    f"note: {error.message}. All entries of the stream count; --must-exist makes this an error",
                    err=True,
                )
        elif missing:
            raise missing[0]
        found = wait_for_entries(session, streams, group, entries, math.inf if most is None else most / 1000)
        if found is None and must_exist and (gone := session.run(lambda server: find_missing(server, streams, group))):
            raise gone[0]
    if found is None:
        say(f"group {group!r} has fewer than {counted(entries, 'undelivered entry', 'undelivered entries')}")
        sys.exit(NO_WORK)
    waiting = ", ".join(f"{count:,} of {stream}" for stream, count in found.items() if count)
    say(f"group {group!r} has undelivered entries: {waiting}")
