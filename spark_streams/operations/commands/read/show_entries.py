"""`rstream show`, `tail` and `where`: entries, new ones and those that a group reads next, their journey."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from spark_streams.base.given_text import without_login
from spark_streams.base.pattern import is_pattern
from spark_streams.base.printable import json_text
from spark_streams.connector.errors import RetriesExhaustedError
from spark_streams.operations.commands.print_entry import (
    decode_options,
    entry_as_json,
    no_such_entry,
    note_absent_fields,
    parse_id,
    print_entry,
)
from spark_streams.operations.commands.shared import (
    address_of,
    connect,
    json_option,
    print_json,
    print_table,
    say,
    url_option,
)
from spark_streams.operations.commands.stream_names import (
    named_streams,
    require_existing,
    resolve_streams,
    streams_by_word,
)

if TYPE_CHECKING:
    from spark_streams.base.ids import StreamId
    from spark_streams.connector.schemas.decode_process import FieldDecoders
    from spark_streams.connector.wire.connection import Server
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.journey.journey import Journey
    from spark_streams.operations.monitor.last_entries import Name, PreviewedEntry, Seen


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

    An ID without a sequence (1795163834542) means all entries of that millisecond. Entries of all shards of a stream
    are shown in the order of their IDs. For dead letters, rstream dead show prints more.

    Bytes that are not UTF-8 are shown as \\xff, in JSON as {"base64": "…"}. If a field name is not UTF-8 or occurs
    twice, `fields` in JSON is a list of [name, value].

    --decode and --schema show a field's decoded value as JSON. A value that cannot be decoded is shown as it is, with
    the reason. --json adds `decoded`: for each such field its name, and `json` (a text) or `reason`.

    \b
    Examples:
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


T = TypeVar("T")
_FIND = 2.0  # seconds between two searches for new streams
_WAIT_MS = 1_000  # that one read waits for an entry
_PAUSE = 0.1  # seconds between two reads that cannot wait on the server: streams in several slots of a cluster


@click.command(short_help="Show the last entries, and follow new ones.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("-f", "--follow", is_flag=True, help="Print new entries as they are added, until Ctrl-C.")
@click.option(
    "-n",
    "--last",
    "count",
    type=click.IntRange(0),
    metavar="N",
    default=10,
    show_default=True,
    help="Number of entries.",
)
@click.option("--group", help="Preview this group: pending entries, then entries that are not delivered yet.")
@url_option
@json_option
def tail(names: tuple[str, ...], follow: bool, count: int, group: str | None, url: str, as_json: bool) -> None:
    """Show the last N entries of the streams together (default: all streams), in the order of their IDs. With -f also
    print new entries. STREAM may be a pattern (`orders:*`); -f also follows streams that match it later.

    With --group the command previews a group: for each stream the N oldest pending entries with their consumers, and
    the next N undelivered ones. With -f it shows all undelivered entries, and new ones. Nothing is delivered.

    Long values and many fields are cut, and bytes that are not UTF-8 are shown as \\xff; --json prints complete
    entries, one per line. If the server does not answer, -f waits for it: no entry is skipped or printed twice. Ctrl-C
    ends it with exit code 0.

    \b
    Examples:
      rstream tail orders payments -f -n 0
      rstream tail 'orders:*' -f --json | jq .fields.amount
      rstream tail orders --group etl
    """
    from spark_streams.connector.wire.connect import connect
    from spark_streams.connector.wire.session import Session

    show = _line if as_json else _Screen(by_name=len(names) != 1 or is_pattern(names[0]))
    address = address_of(url)
    ends = contextlib.suppress(KeyboardInterrupt)
    with ends, Session(address, "rstream tail", is_known=True) as session:
        run = Tail(names, count, group, session)
        # If the server does not answer before the first entry is printed, the command fails like other commands.
        with connect(address) as server:
            run.begin(server, follow, show)
        if follow:
            run.go_on(show)


class Tail:
    """A run of `rstream tail`. names: streams and patterns; count: entries to print first; session: used to follow."""

    def __init__(self, names: Sequence[str], count: int, group: str | None, session: Session) -> None:
        from spark_streams.operations.monitor.last_entries import Follower

        self._names, self._count, self._group, self._session = names, count, group, session
        self._follower = Follower({})

    def begin(self, server: Server, follow: bool, show: Callable[[Seen | PreviewedEntry], None]) -> None:
        """Print the existing entries. follow: `go_on` comes next. Raises StreamStateError, ServerError."""
        from spark_streams.operations.monitor.last_entries import last_entries

        streams = self._streams(server, follow)
        entries: Iterable[Seen | PreviewedEntry]
        if self._group is None:
            entries, ends = last_entries(server, streams, self._count)
            self._follower.positions.update(ends)
        else:
            entries = self._of_group(server, streams, self._group, follow)
        for entry in entries:
            show(entry)

    def go_on(self, show: Callable[[Seen | PreviewedEntry], None]) -> None:
        """Print new entries, for ever. Raises WrongKeyTypeError, ServerReplyError."""
        searched_at = time.monotonic()
        while True:
            for entry in self._step():
                show(entry)
            if time.monotonic() - searched_at > _FIND:
                self._patiently(lambda server: self._follower.add(self._new(server)))
                searched_at = time.monotonic()

    def _of_group(
        self, server: Server, streams: Sequence[Name], group: str, follow: bool
    ) -> Iterator[Seen | PreviewedEntry]:
        from spark_streams.operations.monitor.last_entries import entries_to_come, pending_entries, positions_of

        positions = positions_of(server, streams, group)
        self._follower.positions.update(positions)
        for stream, position in positions.items():
            yield from pending_entries(server, stream, group, self._count) if self._count else ()
            if not follow and self._count:
                yield from entries_to_come(server, stream, position, self._count)

    def _streams(self, server: Server, follow: bool) -> Sequence[Name]:
        if not self._names:
            return self._matching(server)
        by_word = streams_by_word(server, self._names)
        require_existing(server, [name for names, is_found in by_word.values() if not is_found for name in names])
        return self._matching(server) if follow else [*resolve_streams(server, self._names, self._group)]

    def _matching(self, server: Server) -> list[Name]:
        """Return the streams that exist now."""
        from spark_streams.connector.wire.scan import list_streams
        from spark_streams.operations.monitor.last_entries import existing

        if not self._names:
            return self._with_group(server, list_streams(server))
        by_word = streams_by_word(server, self._names).values()
        plain = list(dict.fromkeys(name for names, is_found in by_word if not is_found for name in names))
        matching = [name for names, is_found in by_word if is_found for name in names if name not in plain]
        return [*existing(server, plain), *self._with_group(server, matching)]

    def _with_group(self, server: Server, streams: Sequence[Name]) -> list[Name]:
        from spark_streams.connector.wire.xinfo import streams_with_group

        if self._group is None:
            return list(dict.fromkeys(streams))
        return streams_with_group(server, streams, self._group)

    def _new(self, server: Server) -> Mapping[Name, StreamId]:
        """Return new matching streams, each with the position to follow from: its begin, or the group's position."""
        from spark_streams.base.ids import MIN_ID
        from spark_streams.operations.monitor.last_entries import positions_of

        if self._names and not any(map(is_pattern, self._names)):
            return {}
        new = [stream for stream in self._matching(server) if stream not in self._follower.positions]
        return dict.fromkeys(new, MIN_ID) if self._group is None else positions_of(server, new, self._group)

    def _step(self) -> Iterable[Seen]:
        """Return new entries; wait for a server that does not answer. The follower remembers the position of each
        entry, so that a connection that breaks between two entries loses none."""
        if not self._follower.positions:
            time.sleep(_PAUSE)
            return []
        reply = self._session.address.patience.reply
        wait = min(_WAIT_MS, int(reply * 500))
        entries: list[Seen] = self._patiently(lambda server: list(self._follower.step(server, wait)))
        if not entries and self._session.address.is_cluster:
            time.sleep(_PAUSE)
        return entries

    def _patiently(self, step: Callable[[Server], T]) -> T:
        """Run a step, and repeat it until the server answers. The session logs the outage."""
        while True:
            try:
                return self._session.run(step)
            except RetriesExhaustedError:
                continue


class _Screen:
    """Prints entries as text. by_name: with the name of the stream."""

    def __init__(self, by_name: bool) -> None:
        self._by_name, self._first = by_name, True

    def __call__(self, entry: Seen | PreviewedEntry) -> None:
        from spark_streams.base.printable import name_text
        from spark_streams.base.units import duration
        from spark_streams.connector.wire.xinfo import FATAL
        from spark_streams.operations.monitor.last_entries import PreviewedEntry

        click.echo("", nl=not self._first)
        self._first = False
        title, note = name_text(entry.stream) if self._by_name else "entry", ""
        if isinstance(entry, PreviewedEntry):
            deliveries = f"delivered {entry.deliveries:,} times" if entry.deliveries != 1 else "delivered once"
            note = f"pending for {entry.consumer} for {duration(entry.idle_ms)}, {deliveries}"
            if entry.consumer is None:
                note = f"released, the group's next reader takes it, {deliveries}"
                note = "released as fatal, not to be read again" if entry.deliveries == FATAL else note
            note += ", deleted from the stream" if entry.entry is None else ""
            print_entry(title, str(entry.id), () if entry.entry is None else entry.entry.pairs, note)
        else:
            print_entry(title, str(entry.id), entry.pairs)


def _line(seen: Seen | PreviewedEntry) -> None:
    """Print an entry as a line of JSON."""
    from spark_streams.base.printable import name_text
    from spark_streams.operations.monitor.last_entries import PreviewedEntry

    if isinstance(seen, PreviewedEntry):
        held = {"consumer": seen.consumer, "idle_ms": seen.idle_ms, "deliveries": seen.deliveries}
        group_fields = {"stream": name_text(seen.stream), "pending": held}
        entry = entry_as_json(str(seen.id), () if seen.entry is None else seen.entry.pairs, **group_fields)
        if seen.entry is None:
            entry["fields"] = None
    else:
        entry = entry_as_json(str(seen.id), seen.pairs, stream=name_text(seen.stream))
    say(json_text(entry))


_LIMIT = 100_000  # entries of a stream that are read or counted by default


def _without_login(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    if any(without_login(value) != value for value in values):
        raise click.BadParameter("the URI has a login: give it by the environment or by a role")
    return values


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
    callback=_without_login,
    help="With --checkpoint: also tell what a table has of these batches. Folder of a Delta table or of a job's files, "
    "or CATALOG.NAMESPACE.TABLE of pyiceberg. Repeatable.",
)
@click.option(
    "--archive",
    "archives",
    multiple=True,
    metavar="FOLDER",
    callback=_without_login,
    help="Table of the job archive: also tell which file has the entry. Repeatable.",
)
@click.option(
    "--sent-to",
    multiple=True,
    metavar="STREAM",
    help="Also search this stream for redriven dead letters (rstream dead redrive --to). Repeatable.",
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
    sent_to: tuple[str, ...],
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

    The first line is the verdict; "perhaps" stands before what is not proved. Each line is exact (proved of this entry,
    now), of the batch (proved of all its rows together), or says why it is not known.

    \b
    Examples:
      rstream where orders 1795163834542-0
      rstream where orders:dead 1795163901007-0
      rstream where orders 1795163834542-0 --checkpoint checkpoints/etl --table lake/orders
      rstream where orders 1795163834542-0 --archive lake/archive
    """
    from spark_streams.connector.admin.checkpoint import read_checkpoint
    from spark_streams.connector.wire.session import Session
    from spark_streams.operations.journey.batches import read_table
    from spark_streams.operations.journey.journey import Beside, journeys

    ids = [_complete(text) for text in entries]
    if tables and not folders:
        raise click.UsageError("--table needs --checkpoint: the checkpoint names the batch whose rows are in the table")
    checkpoints = [read_checkpoint(Path(folder)) for folder in folders]
    rows = [read_table(table) for table in tables]
    told: list[Journey] = []
    with Session(address_of(url)) as session:
        server = session.get()
        others = [name for found, _ in streams_by_word(server, sent_to, exact=True).values() for name in found]
        beside = Beside(checkpoints, rows, archives, others)
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
    from spark_streams.operations.journey.entry_lines import time_text, verdict

    for index, journey in enumerate(told):
        if index:
            say("")
        say(f"{name_text(journey.stream)} {journey.id}: {verdict(journey.lines)}")
        rows = [(time_text(line.at), line.event, line.group or "-", line.text, line.known, line.source) for line in
                journey.lines]  # fmt: skip
        print_table(("time", "event", "group", "what", "known", "source"), rows, narrow=120)
