"""Planned changes with their dry run, changes that run, the last ones, and the findings of `rstream doctor`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spark_streams.base.numbers import parse_number
from spark_streams.connector.deadletter.envelope import text
from spark_streams.connector.errors import NotPermittedError, OptionError, StreamStateError, UnsupportedError
from spark_streams.operations.console.actions import (
    ACTIONS,
    ConsoleAction,
    Summary,
    bounds_of,
    is_empty,
    summarize,
    with_options,
    without,
)
from spark_streams.operations.console.cells import Pairs, changes_of
from spark_streams.operations.console.changes import Change, require_short
from spark_streams.operations.console.dead_letter_pages import fetch_letter
from spark_streams.operations.console.incoming import FORM_BYTES, Parameters
from spark_streams.operations.console.site import Site
from spark_streams.operations.console.stream_pages import fetch_entry
from spark_streams.operations.console.visitors import Visitor

_LETTER = "letter"  # the parameter with the ID of a dead letter whose fields a form has changed


async def plan(site: Site, request: Request) -> Response:
    """Run the dry run of a change, and show it with the button that makes the change."""
    parameters = await Parameters.of_form(request, FORM_BYTES)
    action = _action(parameters.get("action"))
    options, allowed = _options(action, parameters), site.allowed
    allowed.require_shown(options)
    if wanted := parameters.get(_LETTER):
        stream = parameters.get("names")
        letter = await site.read(request, lambda server: fetch_letter(site.address, stream, wanted, allowed))
        assigned, removed = changes_of(letter.pairs, parameters, allowed)
        allowed.require_shown({"set": assigned})
        options |= {"set": assigned, "unset": removed, "id": [wanted]}
    if "fields" in action.positional:
        options |= await _fields(site, request, parameters)
    return await _plan(site, request, action, options, parameters.get("back"))


async def _plan(
    site: Site, request: Request, action: ConsoleAction, options: dict[str, Sequence[str]], back: str
) -> Response:
    dry = action.arguments(options, is_dry=True)
    outcome = await site.dry_run(request, dry)
    bounds = bounds_of(outcome.output)
    real = with_options(action.arguments(without(options, bounds), is_dry=False), *bounds)
    require_short(real)
    visitor: Visitor = request.scope["visitor"]
    allowed = site.allowed
    can_make = visitor.can_write and not outcome.code and not is_empty(outcome.output)
    return await site.page(
        request,
        "plan.html",
        title=f"{action.title}: {_subject(options)}",
        action=action,
        outcome=outcome,
        summary=summarize(" ".join(action.command), outcome.output, is_done=False),
        command=site.command(allowed.words(real)),
        arguments=json.dumps(real),
        token=site.access.keys.plan_token(visitor.user, real) if can_make else None,
        back=back,
    )


async def make(site: Site, request: Request) -> Response:
    """Begin a change whose dry run this user has seen."""
    user = request.scope["visitor"].user
    parameters = await Parameters.of_form(request, FORM_BYTES)
    try:
        arguments = json.loads(parameters.get("arguments"))
    except (ValueError, RecursionError):
        arguments = None
    is_command = isinstance(arguments, list) and all(isinstance(word, str) for word in arguments)
    if not is_command or not site.access.keys.use_plan(parameters.get("token"), user, arguments):
        raise NotPermittedError(
            "this change has no dry run of the last ten minutes, or was made already; open its page and check it again"
        )
    change = site.changes.start(user, arguments)
    return RedirectResponse(f"/changes/{change.number}", 303)


async def change(site: Site, request: Request) -> Response:
    """Return the page of a change: its progress, or its result."""
    number = parse_number(request.path_params["number"], 1_000_000_000)
    listed = None if number is None else site.changes.get(number)
    if listed is None:
        raise StreamStateError("this change is no longer in the list; the audit log holds it")
    listed = listed.shown(site.allowed)
    return await site.page(
        request,
        "change.html",
        title=f"Change {listed.number}",
        change=listed,
        summary=_summary(listed),
        command=site.command(listed.arguments),
    )


async def changes(site: Site, request: Request) -> Response:
    """Return the list of the last changes."""
    allowed = site.allowed
    rows = [(change, site.command(allowed.words(change.arguments))) for change in site.changes.last]
    return await site.page(request, "changes.html", title="Changes", rows=rows)


async def _fields(site: Site, request: Request, parameters: Parameters) -> dict[str, Sequence[str]]:
    """Return the parameters of an entry that is added. Raises OptionError."""
    again, names = parameters.get("again"), parameters.all("names")
    if len(names) != 1 or not names[0]:
        raise OptionError("the form does not name one stream; open the stream's page, and then Add an entry")
    pairs: Pairs = ()
    if again:
        view, allowed = await site.view(), site.allowed
        entry = await site.read(request, lambda server: fetch_entry(server, names[0], again, view, allowed))
        pairs = [(text(field), text(value)) for field, value in entry.pairs]
    assigned, removed = changes_of(pairs, parameters, site.allowed)
    if not pairs and not assigned:
        raise OptionError("the entry has no field; go back and write the name of one")
    return {"fields": assigned, "unset": removed}


def _summary(change: Change) -> Summary:
    """Return the summary of a change that has ended."""
    action = next(action for action in ACTIONS.values() if action.has_made(change.arguments))
    output = None if change.outcome is None else change.outcome.output
    return summarize(" ".join(action.command), output, is_done=True)


def _subject(options: dict[str, Sequence[str]]) -> str:
    """Return what a change is about: a stream, and its group."""
    names = ", ".join(options.get("names", ())) or "all streams"
    groups = "".join(options.get("group", ()))
    return f"{groups} of {names}" if groups else names


def _action(name: str) -> ConsoleAction:
    action = ACTIONS.get(name)
    if action is None:
        raise UnsupportedError(f"the console has no action {name[:50]!r}; the actions are {', '.join(ACTIONS)}")
    return action


def _options(action: ConsoleAction, parameters: Parameters) -> dict[str, Sequence[str]]:
    """Return the parameters of the action; a form may have others."""
    return {name: parameters.all(name) for name in ("names", *action.options, *action.flags)}


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
