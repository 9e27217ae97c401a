"""The journey of one entry or dead letter, as `rstream where` tells it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.base.untyped import Json
from spark_streams.operations.console.actions import with_options
from spark_streams.operations.console.bounds import MASK
from spark_streams.operations.console.mask import Mask
from spark_streams.operations.console.pages.streams import entry_id
from spark_streams.operations.console.request.parameters import Parameters
from spark_streams.operations.console.short_names import is_short
from spark_streams.operations.console.site import Site

_ENTRIES = "10000"  # of each stream that one page reads or counts


async def where(site: Site, request: Request) -> Response:
    """Return the page."""
    parameters = Parameters.of_query(request)
    name, wanted = parameters.get("name"), str(entry_id(parameters.get("id")))
    words = ["where", "--", name, wanted] if name.startswith("-") else ["where", name, wanted]
    outcome = await site.dry_run(request, with_options(words, "--limit", _ENTRIES))
    told, mask = outcome.output if isinstance(outcome.output, list) else None, site.mask_of(request)
    return await site.page(
        request,
        "where.html",
        title=f"Journey of {wanted}",
        name=name,
        journeys=[(one["stream"], one["id"], [_shown(line, mask) for line in one["lines"]]) for one in told or ()],
        error=outcome.error if told is None else "",
        command=site.command(words),
    )


def _shown(line: Json, mask: Mask) -> tuple[Json, tuple[str, str] | None]:
    """Return a line without values that are masked, and stream and ID of another entry that it names, if a page takes
    them. The reason of a dead letter may quote any value: its own page knows which."""
    if mask and line["event"] == "dead":
        line = {**line, "text": f"{line['text'].partition(': ')[0]}: {MASK}"}
    stream, entry = line.get("stream") or line.get("of_stream"), line.get("id") or line.get("of_id")
    return line, (stream, entry) if stream and entry and is_short(stream, entry) else None
