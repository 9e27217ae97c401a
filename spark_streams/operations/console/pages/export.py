"""The entries that a page shows, as a file of JSON lines: that of `rstream export`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.operations.console.entry_search import PAGE, read_entries
from spark_streams.operations.console.pages.streams import entry_id, filter_of, shards_of
from spark_streams.operations.console.request.parameters import Parameters
from spark_streams.operations.console.site import Site
from spark_streams.operations.monitor.last_entries import Seen
from spark_streams.operations.transfer.entry_files import write_lines
from spark_streams.operations.transfer.transferred import TransferEntry as Entry

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

    entries = await site.read(read)
    file_name = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    headers = {"content-disposition": f'attachment; filename="{file_name}.jsonl"'}
    return StreamingResponse(_lines(entries), media_type="application/x-ndjson", headers=headers)


def _lines(entries: Sequence[Seen]) -> Iterator[bytes]:
    """Yield a line for each entry, the oldest first."""
    for entry in reversed(entries):
        line = io.BytesIO()
        write_lines(line, [Entry(entry.id, [word for pair in entry.pairs for word in pair])])
        yield line.getvalue()
