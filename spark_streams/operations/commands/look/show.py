"""`rstream show`: show entries of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from spark_streams.operations.commands.decoding import decode_options, note_absent_fields
from spark_streams.operations.commands.entry import entry_as_json, no_such_entry, parse_id, print_entry
from spark_streams.operations.commands.names import named_streams
from spark_streams.operations.commands.shared import connect, json_option, print_json, say, url_option

if TYPE_CHECKING:
    from spark_streams.connector.schemas.decode_process import FieldDecoders
    from spark_streams.connector.wire.connection.server import Server

_LAST = 10  # entries by default


@click.command(short_help="Show entries of a stream with all fields.")
@click.argument("stream")
@click.argument("entry", metavar="[ID]", required=False)
@click.option("--first", type=click.IntRange(1), metavar="N", help="The N oldest entries.")
@click.option("--last", type=click.IntRange(1), metavar="N", help=f"The N newest entries.  [default: {_LAST}]")
@decode_options()
@url_option
@json_option
def show(
    stream: str,
    entry: str | None,
    first: int | None,
    last: int | None,
    url: str,
    as_json: bool,
    decoders: FieldDecoders | None,
) -> None:
    """Show entries of STREAM with all fields, oldest first: the entry ID, or the first or last N entries.

    An ID without a sequence (1795163834542) means all entries of that millisecond. For a sharded stream the entries of
    all shards are shown in the order of their IDs. For dead letters, rstream dead show prints more. No group changes.

    Bytes that are not UTF-8 are shown as \\xff, in JSON as {"base64": "…"}. If a field name is not UTF-8 or occurs
    twice, `fields` in JSON is a list of [name, value].

    --decode and --schema show a field's decoded value as JSON. A value that cannot be decoded is shown as it is, with
    the reason beside its name. --json adds `decoded`: for each such field its name, and `json` (a text) or `reason`.

    \b
    Examples:
      rstream show orders
      rstream show orders 1795163834542-0
      rstream show orders --last 1 --json
      rstream show orders --decode payload --registry https://registry.internal:8081
      rstream show orders --schema payload=order.avsc
    """
    if sum(option is not None for option in (entry, first, last)) > 1:
        raise click.UsageError("ID, --first and --last exclude each other; use one of them")
    with connect(url) as server:
        streams = named_streams(server, [stream], exact=True)
        if entry is not None:
            rows = _entries(server, streams, "XRANGE", *map(bytes, parse_id(entry)))
            if not rows:
                raise no_such_entry(server, stream, entry)
        elif first is not None:
            rows = _entries(server, streams, "XRANGE", "-", "+", "COUNT", first)[:first]
        else:
            rows = _entries(server, streams, "XREVRANGE", "+", "-", "COUNT", last or _LAST)[-(last or _LAST) :]
    entries = [(entry_id.decode(), list(zip(fields[0::2], fields[1::2], strict=True))) for entry_id, fields in rows]
    note_absent_fields(decoders, {name for _, pairs in entries for name, _ in pairs})
    if as_json:
        decoded = [{} if decoders is None else {"decoded": decoders.as_json(pairs)} for _, pairs in entries]
        shown = [entry_as_json(entry_id, pairs) for entry_id, pairs in entries]
        print_json([one | more for one, more in zip(shown, decoded, strict=True)])
        return
    for index, (entry_id, pairs) in enumerate(entries):
        click.echo("", nl=index > 0)
        print_entry("entry", entry_id, pairs, decoders=decoders)
    if not entries:
        say(f"{stream} holds no entries")


def _entries(
    server: Server, streams: Sequence[str | bytes], command: str, *words: str | bytes | int
) -> list[tuple[bytes, list[bytes]]]:
    """Return (ID, fields) of the entries that the command returns for these streams, oldest first."""
    from spark_streams.base.ids import StreamId

    entries = [
        entry for reply in server.execute_all([(command, stream, *words) for stream in streams]) for entry in reply
    ]
    return sorted(entries, key=lambda entry: StreamId.parse(entry[0]))
