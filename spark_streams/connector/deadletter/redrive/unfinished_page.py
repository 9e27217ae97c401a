"""Notes on a page that is being moved, and what the next process does with them (mover.py).

    rstream:redrive:{stream}          the state: `to` names the streams that a page is on its way to
    rstream:redriven:{to}:<stream>    the dead letters of that page that `to` has an entry of

`finish` handles a state with `to` that an earlier process or connection has written. It touches `redriven` before it
reads: a transaction of a process that stood still has been executed by then, or fails by its WATCH.

While `to` is watched, no XADD within EXEC is refused: the note proves that the entries were appended, also if `to` is
deleted later. If `to` is written to all the time, the last try does not watch it. An XADD that fails within EXEC does
not stop the HSET (FACTS R14). The mover then removes the IDs that were refused. If the process dies before that,
`finish` looks for the entries behind the position in the note. A dead letter whose entry it does not find stays, and an
error asks the operator: the entry was refused, or it was appended and removed since.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.deadletter.envelope import raw, split_mark, text
from spark_streams.connector.deadletter.redrive.redrive_state import RedriveRun, require_unchanged
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.wire.replies.multi_exec import transact
from spark_streams.connector.wire.replies.replies import is_wrong_type

# Value of an ID in the notes: its entry was appended. Any other value is the last ID of `to` before that, as the entry
# may have been refused.
WATCHED = b"watched"
_TOUCH = b"touch"  # a field of `redriven` that is no ID: written and removed in one transaction
_PAGE = 1_000  # entries


def redriven_key(to: str, stream: str) -> bytes:
    """Return the key with the IDs of a stream's dead letters whose entries are in `to`, while they are not deleted."""
    return key_beside(to, "redriven", stream)


def by_slot(run: RedriveRun, streams: Sequence[bytes]) -> list[list[bytes]]:
    """Group streams so that one transaction may append to each group."""
    return run.session.get().together(list(streams), lambda stream: stream)


def finish(run: RedriveRun, parking: str) -> None:
    """Delete the dead letters whose entries were appended. The state is watched. parking: stream in which they count as
    parked.

    Raises StreamStateError if it is not known whether an entry was appended."""
    ids: list[bytes] = []
    parked: set[bytes] = set()
    for to in run.state.to:
        node, key = run.session.connection_for(raw(to)), redriven_key(to, run.stream)
        touch = [("HSET", key, _TOUCH, ""), ("HDEL", key, _TOUCH), ("HGETALL", key)]
        flat = require_unchanged(run, transact(node, touch))[-1]
        notes = dict(zip(flat[0::2], flat[1::2], strict=True))
        appended = [entry for entry, how in notes.items() if how == WATCHED]
        appended += _find_appended(run, raw(to), {entry: how for entry, how in notes.items() if how != WATCHED})
        ids += appended
        if to == parking:
            parked.update(appended)
    run.watch()
    replies = run.home.execute_all([("XRANGE", run.stream, entry, entry) for entry in ids])
    remaining = [entry for entry, entries in zip(ids, replies, strict=True) if entries]
    if remaining:
        parked.intersection_update(remaining)
        run.write(run.next(len(remaining) - len(parked), len(parked)), ("XDEL", run.stream, *remaining))
    forget(run)


def _find_appended(run: RedriveRun, to: bytes, positions: Mapping[bytes, bytes]) -> list[bytes]:
    """Return those dead letters that `to` has an entry of. positions: of dead letters, the last ID of `to` before.

    Raises StreamStateError if it has none of a dead letter that exists."""
    replies = run.home.execute_all([("XRANGE", run.stream, entry, entry) for entry in positions])
    missing = {entry: entries[0][1] for entry, entries in zip(positions, replies, strict=True) if entries}
    node, appended = run.session.connection_for(to), list[bytes]()
    position = min((StreamId.parse(positions[entry]) for entry in missing), default=MAX_ID)
    while missing and position < MAX_ID:
        [page] = node.execute_all([("XRANGE", to, bytes(position.next()), "+", "COUNT", _PAGE)], is_wrong_type)
        if not page or is_wrong_type(page):  # the key may hold something else now
            break
        position = StreamId.parse(page[-1][0])
        marks = {mark.previous for _, fields in page if (mark := split_mark(fields)[1]) is not None}
        copies = {tuple(fields) for _, fields in page}  # dead letters are parked unchanged
        of_page = [e for e, fields in missing.items() if f"{run.stream}/{text(e)}" in marks or tuple(fields) in copies]
        appended += of_page
        missing = {entry: fields for entry, fields in missing.items() if entry not in of_page}
    if missing:
        key = text(redriven_key(text(to), run.stream))
        raise StreamStateError(
            f"stream {run.stream!r} at {run.session.address}: a redrive to stream {text(to)!r} ended while it moved "
            f"dead letters, and {len(missing)} of them have no entry there, for example {text(min(missing))}. They "
            "were refused, or their entries were removed since. Delete with XDEL those that were processed. Then "
            f"delete the note on them, and start the redrive again: redis-cli DEL {shlex.quote(key)}"
        )
    return appended


def forget(run: RedriveRun) -> None:
    """Delete the notes on a page whose dead letters are deleted."""
    for streams in by_slot(run, [raw(to) for to in run.state.to]):
        node, keys = run.session.connection_for(streams[0]), [redriven_key(text(to), run.stream) for to in streams]
        node.execute("WATCH", *keys)
        run.watch()  # behind the WATCH of `redriven`: the notes of a process that has taken over stay
        require_unchanged(run, transact(node, [("DEL", *keys)]))
    run.watch()
    run.write(replace(run.state, to=()))
