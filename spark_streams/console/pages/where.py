"""The journey of one entry or dead letter, as `rstream where` tells it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.console.actions import with_options
from spark_streams.console.pages.streams import entry_id
from spark_streams.console.request.parameters import Parameters
from spark_streams.console.short_names import is_short
from spark_streams.console.site import Site
from spark_streams.model.untyped import Json

_ENTRIES = "10000"  # of each stream that one page reads or counts


async def where(site: Site, request: Request) -> Response:
    """Return the page."""
    parameters = Parameters.of_query(request)
    name, wanted = parameters.get("name"), str(entry_id(parameters.get("id")))
    words = ["where", "--", name, wanted] if name.startswith("-") else ["where", name, wanted]
    outcome = await site.while_there(request, site.changes.dry_run(with_options(words, "--limit", _ENTRIES)))
    told = outcome.output if isinstance(outcome.output, list) else None
    return await site.page(
        request,
        "where.html",
        title=f"Journey of {wanted}",
        name=name,
        journeys=[(one["stream"], one["id"], [(line, _named(line)) for line in one["lines"]]) for one in told or ()],
        error=outcome.error if told is None else "",
        command=site.command(words),
    )


def _named(line: Json) -> tuple[str, str] | None:
    """Return stream and ID of another entry that a line names, if a page takes them."""
    stream, entry = line.get("stream") or line.get("of_stream"), line.get("id") or line.get("of_id")
    return (stream, entry) if stream and entry and is_short(stream, entry) else None
