"""What is said of streams that somebody names and that are not there: the name may be misspelt, so the nearest is told.

The nearest name costs a SCAN. Where the server has many keys, or the user may not look, there is none.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

from spark_streams.errors import StreamMissingError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.scan import streams_if_few

_SHOWN = 5  # streams that are named one by one
_COMPARED = 10_000  # names: some tenths of a second

ABSENT = "does not exist yet"
CREATE = "wait for it with createStreams=true"  # what may be done of `missing`
WAITING = "waiting for its first entry"
SILENT = "has never had an entry"  # perhaps a query made it, which waited for a misspelt name


def lines_of(server: Server, why: Mapping[str, str], then: str, but: Collection[str] = ()) -> list[str]:
    """A line for each stream without entries. why: ABSENT or SILENT, by the stream's name; then: what follows from it;
    but: streams that are nobody's input. Raises ServerUnreachableError."""
    shown = list(why)[:_SHOWN]
    hints = _hints(server, shown, {*why, *but})
    lines = [f"stream {stream!r} at {server.address} {why[stream]}; {then}{hints[stream]}" for stream in shown]
    if len(why) > _SHOWN:
        lines.append(f"{len(why) - _SHOWN} more streams at {server.address} have no entry yet")
    return lines


def nothing_matches(server: Server, pattern: str, but: Collection[str] = ()) -> str:
    """A line for a pattern that finds no stream to read. Raises ServerUnreachableError."""
    hint = _hints(server, [pattern], but)[pattern]
    return f"no stream with entries at {server.address} matches {pattern!r}{hint}"


def missing(server: Server, stream: str, remedy: str) -> StreamMissingError:
    """The error for a stream that is not waited for. Raises ServerUnreachableError."""
    hint = _hints(server, [stream], [stream])[stream]
    return StreamMissingError(
        f"stream {stream!r} does not exist at {server.address}{hint}; check its name and the url's database, or "
        + remedy
        + (" (embedded: forgets its streams when it ends)" if server.address.forgets else "")
    )


def nearest(server: Server, wanted: Sequence[str], but: Collection[str] = ()) -> dict[str, str]:
    """For each of these names the nearest one of a stream that is there, if one is near. but: names that nobody can
    mean. Raises ServerUnreachableError."""
    there = streams_if_few(server) if wanted else None
    if there is None or len(there) > _COMPARED:
        return {}
    names = {name.lower(): name for name in there if name not in but}
    found = {name: difflib.get_close_matches(name.lower(), names, n=1) for name in wanted}
    return {name: names[near[0]] for name, near in found.items() if near}


def _hints(server: Server, wanted: Sequence[str], but: Collection[str]) -> dict[str, str]:
    """For each name ` (did you mean …?)`, or nothing."""
    near = nearest(server, wanted, but)
    return {name: f" (did you mean {near[name]!r}?)" if name in near else "" for name in wanted}
