"""`rstream show`: the entries of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from spark_streams.commands.entry import entry_as_json, no_such_entry, parse_id, print_entry
from spark_streams.commands.shared import connect, json_option, named_streams, print_json, say, url_option

if TYPE_CHECKING:
    from spark_streams.wire.connection.server import Server

_LAST = 10  # entries, where nobody says which


@click.command(short_help="Entries of a stream, with all their fields.")
@click.argument("stream")
@click.argument("entry", metavar="[ID]", required=False)
@click.option("--first", type=click.IntRange(1), metavar="N", help="The oldest so many.")
@click.option("--last", type=click.IntRange(1), metavar="N", help=f"The newest so many.  [default: {_LAST}]")
@url_option
@json_option
def show(stream: str, entry: str | None, first: int | None, last: int | None, url: str, as_json: bool) -> None:
    """Entries of STREAM, oldest first, with all their fields: one by its ID, or the first or the last ones.

    An ID without a sequence (1795163834542) means all entries of that millisecond. Bytes that are no text are shown as
    \\xff. JSON is that of rstream dead export: a value that is no UTF-8 is {"base64": "…"}, and where a field's name is
    none, or comes twice, `fields` is a list of [name, value]. No group is touched. Of dead letters, rstream dead show
    says more. Those of a stream in shards are of all shards, by their ids.

    \b
    Examples:
      rstream show orders
      rstream show orders 1795163834542-0
      rstream show orders --last 1 --json
    """
    if sum(one is not None for one in (entry, first, last)) > 1:
        raise click.UsageError("give one of ID, --first and --last")
    with connect(url) as server:
        streams = named_streams(server, [stream])
        if entry is not None:
            found = _entries(server, streams, "XRANGE", *map(bytes, parse_id(entry)))
            if not found:
                raise no_such_entry(server, stream, entry)
        elif first is not None:
            found = _entries(server, streams, "XRANGE", "-", "+", "COUNT", first)[:first]
        else:
            found = _entries(server, streams, "XREVRANGE", "+", "-", "COUNT", last or _LAST)[-(last or _LAST) :]
    entries = [(one.decode(), list(zip(fields[0::2], fields[1::2], strict=True))) for one, fields in found]
    if as_json:
        print_json([entry_as_json(one, pairs) for one, pairs in entries])
        return
    for at, (one, pairs) in enumerate(entries):
        click.echo("", nl=at > 0)
        print_entry("entry", one, pairs)
    if not entries:
        say(f"{stream} holds no entries")


def _entries(
    server: Server, streams: Sequence[str | bytes], command: str, *words: str | bytes | int
) -> list[tuple[bytes, list[bytes]]]:
    """(id, fields) of what the command finds in each of these, oldest first."""
    from spark_streams.model.ids import StreamId

    found = [
        entry for reply in server.execute_all([(command, stream, *words) for stream in streams]) for entry in reply
    ]
    return sorted(found, key=lambda entry: StreamId.parse(entry[0]))
