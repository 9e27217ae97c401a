"""The journey of one entry or dead letter, as `rstream where` tells it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.base.untyped import Json
from spark_streams.operations.console.actions import with_options
from spark_streams.operations.console.allow_list import AllowList
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
    told, allowed = outcome.output if isinstance(outcome.output, list) else None, site.allowed
    return await site.page(
        request,
        "where.html",
        title=f"Journey of {wanted}",
        name=name,
        journeys=[(one["stream"], one["id"], [_shown(line, allowed) for line in one["lines"]]) for one in told or ()],
        error=outcome.error if told is None else "",
        command=site.command(words),
    )


def _shown(line: Json, allowed: AllowList) -> tuple[Json, tuple[str, str] | None]:
    """Return a line without hidden values, and stream and ID of another entry that it names, if a page takes them. Only
    the line of a dead letter quotes an entry: the reason and the message."""
    if line["event"] == "dead":
        place, colon, why = line["text"].partition(": ")
        line = {**line, "text": f"{place}{colon}{allowed.text(why)}"}
    stream, entry = line.get("stream") or line.get("of_stream"), line.get("id") or line.get("of_id")
    return line, (stream, entry) if stream and entry and is_short(stream, entry) else None
