"""Streams: the list, one stream with its entries and consumers, one entry with all fields, and entries as a file."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from spark_streams.base.given_text import duration, moment
from spark_streams.base.ids import MAX_ID, MIN_ID, U64_MAX, StreamId, age_ms
from spark_streams.base.printable import name_text
from spark_streams.connector.admin.groups import fetch_time
from spark_streams.connector.admin.streams import fetch_shard_sets, may_be_in_shards
from spark_streams.connector.deadletter.envelope import text
from spark_streams.connector.errors import OptionError, StreamMissingError, StreamStateError, UnsupportedError
from spark_streams.connector.keys import shards_key
from spark_streams.connector.lag.margin import UNKNOWN, Margin, order
from spark_streams.connector.wire.connection import ReplyError, Server
from spark_streams.connector.wire.replies import is_no_group, is_no_such_key
from spark_streams.connector.wire.xinfo import FATAL, StreamState, stream_states
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.cells import SHORT, Cell, DecodedCell, cell, fields_of, is_editable
from spark_streams.operations.console.entry_search import PAGE, FieldFilter, FoundEntries, JsonFilter, read_entries
from spark_streams.operations.console.incoming import EDITABLE_FIELDS, NAME_BYTES, NEW_FIELDS, Parameters
from spark_streams.operations.console.live import View
from spark_streams.operations.console.site import Pages, Site, key_of
from spark_streams.operations.monitor.last_entries import Seen, existing
from spark_streams.operations.transfer.entry_files import write_lines
from spark_streams.operations.transfer.transferred import TransferEntry

_FIELDS = 8  # of an entry in a list
_ALL_FIELDS = 500  # of an entry on its own page
_PENDING = 5  # entries per group on the page of a stream
_EMPTY = 4  # rows for new fields in the form that adds an entry
_PRODUCT = "rstream:"
_NOT_KNOWN = Margin(None, UNKNOWN, "")


async def streams(site: Site, request: Request) -> Response:
    """Return the list of all streams."""
    parameters = Parameters.of_query(request)
    view = await site.view()
    find, with_own = parameters.get("find"), bool(parameters.get("own"))
    selected = [
        stream
        for stream in view.survey.streams
        if find in stream.stream and (with_own or not stream.stream.startswith(_PRODUCT))
    ]
    margins: dict[str, list[Margin]] = {}  # of its groups, the one that ends first at the front
    for group in view.survey.groups:
        margins.setdefault(group.stream, []).append(view.margins.get((group.stream, group.group), _NOT_KNOWN))
    added = {stream: rates.added for (stream, _), rates in view.history.rates.items()}
    pages, shown = Pages.select(selected, parameters.get("page"))
    rows = [
        (
            stream,
            sorted(margins.get(stream.stream, ()), key=order),
            added.get(stream.stream),
            view.stream_bytes.get(stream.stream),
            age_ms(StreamId.parse(stream.last), view.survey.at_ms),
        )
        for stream in shown
    ]
    return await site.page(
        request, "streams.html", title="Streams", rows=rows, pages=pages, find=find, with_own=with_own
    )


@dataclass(frozen=True)
class PendingEntry:
    """An entry that was delivered to a group, and is not acknowledged."""

    group: str
    id: str
    consumer: str | None  # None: a consumer has released it (XNACK)
    idle_ms: int | None  # since its delivery, None: it was released
    deliveries: int | None  # how often it was delivered, None: it was released as fatal


def fetch_pending(
    server: Server, streams: Sequence[str | bytes], groups: Sequence[str], limit: int, begin: str = "-"
) -> list[PendingEntry]:
    """Return the oldest pending entries of each group, `limit` of each stream. begin: the first ID. Raises
    NotPermittedError, ServerError."""
    commands = [("XPENDING", stream, group, begin, "+", limit) for stream in streams for group in groups]
    pending: list[PendingEntry] = []
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if is_no_group(reply) or is_no_such_key(reply):
            continue  # deleted since
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        for entry, consumer, idle, deliveries in reply:
            is_released = idle < 0
            pending.append(
                PendingEntry(
                    command[2],
                    name_text(entry),
                    None if is_released else name_text(consumer)[:NAME_BYTES],
                    None if is_released else idle,
                    None if deliveries == FATAL else deliveries,
                )
            )
    return sorted(pending, key=lambda entry: (-(entry.idle_ms or 0), entry.id))


@dataclass(frozen=True)
class ShownEntry:
    """An entry in a list."""

    id: str
    age_ms: int | None  # None: its ID is no time
    fields: list[tuple[Cell, Cell]]  # the first ones
    more: int  # number of the others


@dataclass(frozen=True)
class _StreamRead:
    """What the page of a stream reads from the server."""

    names: Sequence[str | bytes]  # of its shards
    states: Sequence[StreamState]
    page: FoundEntries
    entries: Sequence[ShownEntry]  # of the page
    pending: Sequence[PendingEntry]  # the oldest ones


async def stream(site: Site, request: Request) -> Response:
    """Return the page of one stream: its entries, the newest first, its groups, consumers and pending entries."""
    parameters = Parameters.of_query(request)
    name = parameters.get("name")
    allowed = site.allowed
    field = filter_of(parameters, allowed)
    view = await site.view()
    groups = [group for group in view.survey.groups if group.stream == name]

    def read(server: Server) -> _StreamRead:
        states = {shard: s for shard, s in stream_states(server, shards_of(server, name, view)).items() if s.exists}
        if not states:
            raise StreamMissingError(f"no stream {name!r} at {server.address}; the page Streams lists them")
        now = fetch_time(server, view.survey.at_ms)
        end = _position(parameters.get("at"), now)
        page = read_entries(server, list(states), allowed, end, MIN_ID, field)
        entries = [_shown(entry, now) for entry in page.entries]
        pending = fetch_pending(server, list(states), [group.group for group in groups if group.pending], _PENDING)
        return _StreamRead(list(states), list(states.values()), page, entries, pending[: 2 * _PENDING])

    return await site.page(
        request,
        "stream.html",
        title=f"Stream {name}",
        name=name,
        bytes=view.stream_bytes.get(name),
        groups=groups,
        consumers=[(group.group, consumer) for group in groups for consumer in group.consumers],
        rates=view.history.rates,
        held=view.held,
        waiting=[entries for entries in view.waiting if entries.stream == name],
        details=None if site.is_live(request) else await site.read(request, read),
        at=parameters.get("at"),
        field=field,
        where=parameters.get("where"),
        has_dead_letters=any(s.stream == name and s.has_dead_letters for s in view.survey.streams),
    )


async def entry(site: Site, request: Request) -> Response:
    """Return the page of one entry with all its fields."""
    parameters = Parameters.of_query(request)
    name, wanted = parameters.get("name"), parameters.get("id")
    view = await site.view()

    def read(server: Server) -> tuple[Seen, list[DecodedCell | None], int]:
        whole = fetch_entry(server, name, wanted, view, AllowList())
        return site.allowed.entry(whole), site.decoded(whole.pairs[:_ALL_FIELDS]), fetch_time(server, 0)

    details, decoded, now_ms = await site.read(request, read)
    return await site.page(
        request,
        "entry.html",
        title=f"Entry {wanted} of {name}",
        name=name,
        entry=details,
        shard=name_text(details.stream),
        age_ms=age_ms(details.id, now_ms),
        fields=[
            (cell(field, SHORT), cell(value), one)
            for (field, value), one in zip(details.pairs[:_ALL_FIELDS], decoded, strict=True)
        ],
        more=max(0, len(details.pairs) - _ALL_FIELDS),
        command=site.command(["show", name, wanted]),
    )


def fetch_entry(server: Server, name: str, wanted: str, view: View, allowed: AllowList) -> Seen:
    """Return one entry without hidden values. Raises OptionError, StreamStateError if there is none with this ID."""
    only = entry_id(wanted)
    page = read_entries(server, shards_of(server, name, view), allowed, only, only)
    if not page.entries:
        raise StreamStateError(f"no entry {wanted} in stream {name!r}; it was deleted or trimmed")
    return page.entries[0]


async def add(site: Site, request: Request) -> Response:
    """Return the form that adds an entry: with the fields of an entry (`again`), or the names of the newest one's."""
    parameters = Parameters.of_query(request)
    name, again = parameters.get("name"), parameters.get("again")
    view, allowed = await site.view(), site.allowed

    def read(server: Server) -> tuple[Sequence[Seen], list[DecodedCell | None]]:
        if again:
            whole = fetch_entry(server, name, again, view, AllowList())
            return [allowed.entry(whole)], site.decoded(whole.pairs[:EDITABLE_FIELDS])
        return read_entries(server, shards_of(server, name, view), allowed, limit=1).entries, []

    entries, decoded = await site.read(request, read)
    pairs = [(text(field), text(value)) for entry in entries for field, value in entry.pairs]
    names = [] if again else [field for field, _ in pairs[: NEW_FIELDS - _EMPTY] if is_editable(field)]
    fields = fields_of(pairs, allowed) if again else []
    return await site.page(
        request,
        "add.html",
        title=f"Add an entry to {name}",
        name=name,
        again=again,
        fields=fields,
        decoded=decoded,
        more=len(pairs) - len(fields) if again else 0,
        names=[*names, *[""] * _EMPTY],
    )


def filter_of(parameters: Parameters, allowed: AllowList) -> FieldFilter:
    """Return the search of these parameters. Raises OptionError, NotPermittedError."""
    where = parameters.get("where")
    json = JsonFilter.parse(where) if where.strip() else None
    search = FieldFilter(parameters.get("field"), parameters.get("value"), json)
    if search:
        allowed.require_field(search.name)
    return search


def shards_of(server: Server, name: str, view: View) -> list[str | bytes]:
    """Return the names of a stream's shards, or the stream itself. Shards whose record is lost are searched only if the
    stream is in the snapshot. Raises StreamStateError if it does not exist, ShardsError."""
    key = key_of(name)
    is_known = any(stream.stream == name for stream in view.survey.streams)
    may_have_shards = isinstance(key, str) and may_be_in_shards(key) and (is_known or _has_shards(server, key))
    shard_set = fetch_shard_sets(server, [key]).get(key) if may_have_shards and isinstance(key, str) else None
    streams = existing(server, [key] if shard_set is None else [*shard_set.names])
    if not streams:
        raise StreamMissingError(f"no stream {name!r} at {server.address}; the page Streams lists them")
    return streams


def _has_shards(server: Server, stream: str) -> bool:
    """Whether the server has no key of this name, and a record of its shards."""
    kind, record = server.pipeline([("TYPE", stream), ("TYPE", shards_key(stream))])
    return (kind, record) == (b"none", b"hash")


def _shown(entry: Seen, now_ms: int) -> ShownEntry:
    fields = [(cell(name, SHORT // 2), cell(value, SHORT)) for name, value in entry.pairs[:_FIELDS]]
    return ShownEntry(str(entry.id), age_ms(entry.id, now_ms), fields, max(0, len(entry.pairs) - _FIELDS))


def entry_id(wanted: str) -> StreamId:
    """Raises OptionError."""
    try:
        return StreamId.parse(wanted)
    except ValueError as error:
        raise OptionError(f"{wanted[:100]!r} is not an entry ID: {error}") from None


def _position(wanted: str, now_ms: int) -> StreamId:
    """Return the ID from which entries are listed backwards: of an ID, a time, or a time ago; empty: the newest."""
    plain = wanted.strip()
    if not plain:
        return MAX_ID
    if re.fullmatch("[0-9]+-[0-9]+", plain):
        return entry_id(plain)
    try:
        at_ms = now_ms - duration(plain) if re.fullmatch("[0-9]+ *[a-z]+", plain) else moment(plain)
    except ValueError:
        raise OptionError(
            f"{plain[:100]!r} is neither an entry ID nor a time; examples: 1795163834542-0, 2026-11-20T08:00, 1h"
        ) from None
    return StreamId(max(0, at_ms), U64_MAX)


_ROUNDS = 3  # searches of a request, each bounded: the page has found its entries in one


async def export(site: Site, request: Request) -> Response:
    """Return the entries of a search from the ID `at` back to the ID `to`, the oldest first."""
    parameters = Parameters.of_query(request)
    name, allowed = parameters.get("name"), site.allowed
    fields = filter_of(parameters, allowed)
    newest, oldest = entry_id(parameters.get("at")), entry_id(parameters.get("to"))
    view = await site.view()

    def read(server: Server) -> Sequence[Seen]:
        shards, end, entries = shards_of(server, name, view), newest, list[Seen]()
        for _ in range(_ROUNDS):
            page = read_entries(server, shards, allowed, end, oldest, fields, PAGE + 1 - len(entries))
            entries += page.entries
            if len(entries) > PAGE and entries[PAGE].id > oldest:
                break
            if len(entries) > PAGE or page.next is None or page.next < oldest:
                return entries[:PAGE]  # the page did not show an entry of another shard with the same ID
            end = page.next
        raise UnsupportedError(f"the console exports what one page shows, up to {PAGE} entries; use rstream export")

    entries = await site.read(request, read)
    file_name = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    headers = {"content-disposition": f'attachment; filename="{file_name}.jsonl"'}
    return StreamingResponse(_lines(entries), media_type="application/x-ndjson", headers=headers)


def _lines(entries: Sequence[Seen]) -> Iterator[bytes]:
    """Yield a line for each entry, the oldest first."""
    for entry in reversed(entries):
        line = io.BytesIO()
        write_lines(line, [TransferEntry(entry.id, [word for pair in entry.pairs for word in pair])])
        yield line.getvalue()
