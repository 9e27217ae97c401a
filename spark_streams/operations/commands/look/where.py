"""`rstream where`: the journey of entries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_streams.operations.commands.entry import parse_id
from spark_streams.operations.commands.names import require_existing, streams_by_word
from spark_streams.operations.commands.shared import address_of, json_option, print_json, print_table, say, url_option

if TYPE_CHECKING:
    from spark_streams.base.ids import StreamId
    from spark_streams.operations.journey.journey import Journey

_LIMIT = 100_000  # entries of a stream that are read or counted by default


@click.command(short_help="Tell the journey of an entry, from XADD to its dead letter.")
@click.argument("stream")
@click.argument("entries", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=_LIMIT,
    show_default=True,
    metavar="N",
    help="Entries that are read or counted in each stream.",
)
@click.option(
    "--checkpoint",
    "folders",
    multiple=True,
    metavar="FOLDER",
    help="Checkpoint folder of a query, on this machine: also tell its batches, and what the sink's ledger says of "
    "them. Repeatable.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="TABLE",
    help="With --checkpoint: also tell what a table has of these batches. Folder of a Delta table or of a job's files, "
    "or CATALOG.NAMESPACE.TABLE of pyiceberg. Repeatable.",
)
@click.option(
    "--archive",
    "archives",
    multiple=True,
    metavar="FOLDER",
    help="Table of the job archive: also tell which file has the entry. Repeatable.",
)
@url_option
@json_option
def where(
    stream: str,
    entries: tuple[str, ...],
    limit: int,
    folders: tuple[str, ...],
    tables: tuple[str, ...],
    archives: tuple[str, ...],
    url: str,
    as_json: bool,
) -> None:
    """Tell where each entry ID of STREAM is, and what became of it. STREAM may also be a stream of dead letters.

    \b
    added      when, by its ID; how many repeated adds the stream refused
    groups     not delivered (how many before it), pending (consumer, deliveries), acknowledged, or never delivered
    retries    in which stream it waits, and for which attempt
    dead       in which stream, under which ID, why, and whether its fields are the same
    sent back  as which entry, by which redrive; the journey of that entry follows
    removed    trimmed, deleted or expired, as far as the server records it

    The first line is the verdict; "perhaps" stands before what is not proved. Each line is exact (proved of this
    entry, now), of the batch (proved of all its rows together), or says why it is not known. No group changes.

    \b
    Examples:
      rstream where orders 1795163834542-0
      rstream where orders:dead 1795163901007-0
      rstream where orders 1795163834542-0 1795163834542-1 --json
      rstream where orders 1795163834542-0 --checkpoint checkpoints/etl --table lake/orders
      rstream where orders 1795163834542-0 --archive lake/archive
    """
    from spark_streams.connector.admin.checkpoint import read_checkpoint
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.journey.journey import Beside, journeys
    from spark_streams.operations.journey.tables import read_table

    ids = [_complete(text) for text in entries]
    if tables and not folders:
        raise click.UsageError("--table needs --checkpoint: the checkpoint names the batch whose rows are in the table")
    checkpoints = [read_checkpoint(Path(folder)) for folder in folders]
    beside = Beside(checkpoints, [read_table(table) for table in tables], archives)
    told: list[Journey] = []
    with Session(address_of(url)) as session:
        server = session.get()
        names = streams_by_word(server, [stream], exact=True)[stream][0]
        for entry in dict.fromkeys(ids):
            of_names = [journeys(session, name, entry, limit, beside) for name in names]
            known = [of_name for of_name in of_names if any(journey.is_present for journey in of_name)] or of_names
            told += [journey for of_name in known for journey in of_name]
        if not any(journey.is_known for journey in told):
            require_existing(session.get(), names)
    if as_json:
        print_json([journey.as_json() for journey in told])
        return
    _print(told)


def _complete(text: str) -> StreamId:
    """Return the ID. Raises UsageError if it is not complete."""
    first, last = parse_id(text)
    if first != last:
        raise click.UsageError(f"{text} names a millisecond; write the complete ID, such as {text}-0")
    return first


def _print(told: Sequence[Journey]) -> None:
    from spark_streams.base.printable import name_text
    from spark_streams.operations.journey.line import time_text
    from spark_streams.operations.journey.verdict import verdict

    for index, journey in enumerate(told):
        if index:
            say("")
        say(f"{name_text(journey.stream)} {journey.id}: {verdict(journey.lines)}")
        rows = [(time_text(line.at), line.event, line.group or "-", line.text, line.known, line.source) for line in
                journey.lines]  # fmt: skip
        print_table(("time", "event", "group", "what", "known", "source"), rows)
