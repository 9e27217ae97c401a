"""The findings of `rstream doctor`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spark_streams.operations.console.site import Site
from spark_streams.operations.console.summary import summarize


async def doctor(site: Site, request: Request) -> Response:
    """Return the page."""
    outcome = await site.dry_run(request, ["doctor"])
    document = outcome.output if isinstance(outcome.output, dict) else {}
    return await site.page(
        request,
        "doctor.html",
        title="Doctor",
        findings=document.get("findings", []),
        server=summarize("doctor", document.get("server") or document.get("cluster"), is_done=True),
        error="" if document else outcome.error,
        command=site.command(["doctor"]),
    )
