"""Messages about missing streams. The name may be misspelt, so they suggest the nearest name.

The suggestion costs a SCAN. There is none if the server has many keys, or if the user may not list them.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

from spark_streams.connector.errors import StreamMissingError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.scan import streams_if_few

_SHOWN = 5  # streams that are listed one by one
_COMPARED = 10_000  # names, which take some tenths of a second

ABSENT = "does not exist yet"
CREATE = "wait for it with createStreams=true"  # remedy that a user may add to `missing`
WAITING = "waiting for its first entry"
SILENT = "has never had an entry"  # a query with a misspelt name may have created it


def lines_of(server: Server, why: Mapping[str, str], then: str, but: Collection[str] = ()) -> list[str]:
    """Return a line for each stream without entries.

    why: ABSENT or SILENT, by stream. then: what the query does about it.

    but: streams that are never read. Raises ServerUnreachableError.
    """
    shown = list(why)[:_SHOWN]
    hints = _hints(server, shown, {*why, *but})
    lines = [f"stream {stream!r} at {server.address} {why[stream]}; {then}{hints[stream]}" for stream in shown]
    if len(why) > _SHOWN:
        lines.append(f"{len(why) - _SHOWN} more streams at {server.address} have no entry yet")
    return lines


def nothing_matches(server: Server, pattern: str, but: Collection[str] = ()) -> str:
    """Return a line for a pattern without a stream to read. Raises ServerUnreachableError."""
    hint = _hints(server, [pattern], but)[pattern]
    return f"no stream with entries at {server.address} matches {pattern!r}{hint}"


def missing(server: Server, stream: str, remedy: str) -> StreamMissingError:
    """Return the error for a missing stream that the query does not wait for. Raises ServerUnreachableError."""
    hint = _hints(server, [stream], [stream])[stream]
    return StreamMissingError(
        f"stream {stream!r} does not exist at {server.address}{hint}; check its name and the url's database, or "
        + remedy
        + (" (embedded: forgets its streams when it ends)" if server.address.forgets else "")
    )


def suggest_names(server: Server, requested: Sequence[str], but: Collection[str] = ()) -> dict[str, str]:
    """Return the nearest existing stream for each name, if there is a near one. but: names not to suggest.

    Raises ServerUnreachableError.
    """
    existing_streams = streams_if_few(server) if requested else None
    if existing_streams is None or len(existing_streams) > _COMPARED:
        return {}
    names = {name.lower(): name for name in existing_streams if name not in but}
    matches = {name: difflib.get_close_matches(name.lower(), names, n=1) for name in requested}
    return {name: names[near[0]] for name, near in matches.items() if near}


def hint_of_names(server: Server, requested: Sequence[str], command: str = "rstream streams") -> str:
    """Return a question with the nearest existing streams, or which command lists the streams."""
    near = [repr(name) for name in suggest_names(server, requested, requested).values()]
    return f"did you mean {', '.join(near)}?" if near else f"{command} lists the streams"


def _hints(server: Server, requested: Sequence[str], but: Collection[str]) -> dict[str, str]:
    """Return ` (did you mean …?)` or nothing for each name."""
    near = suggest_names(server, requested, but)
    return {name: f" (did you mean {near[name]!r}?)" if name in near else "" for name in requested}
