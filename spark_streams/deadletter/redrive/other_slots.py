"""Append a page's entries first, and delete their dead letters afterwards: for streams in other slots of a cluster,
where no transaction covers both streams, and for streams that are written to all the time (mover.py).

    rstream:redrive:{stream}          the state: `to` names the streams that a page is on its way to
    rstream:redriven:{to}:<stream>    the dead letters of that page that `to` has an entry of

    append     → MULTI   SET state with `to`   EXEC
               → WATCH redriven to   XINFO to   GET state   MULTI   XADD to …   HSET redriven ids   EXEC   for each `to`
               (mover.py deletes the dead letters)
    forget     → WATCH redriven   GET state   MULTI   DEL redriven   EXEC
               → MULTI   SET state without `to`   EXEC

`finish` handles a state with `to` that an earlier process or connection has written. It writes into `redriven` before
it reads: a transaction of a process that stood still has been executed by then, or fails by its WATCH.

While `to` is watched, no XADD within EXEC is refused: the note proves that the entries were appended, also if `to` is
deleted later. If `to` is written to all the time, the last try does not watch it. An XADD that fails within EXEC does
not stop the HSET (FACTS R14). `append` then removes the IDs that were refused. If the process dies before that,
`finish` looks for the entries behind the position in the note. A dead letter whose entry it does not find stays, and an
error asks the operator: the entry was refused, or it was appended and removed since.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_streams.deadletter.envelope import raw, split_mark, text
from spark_streams.deadletter.ids_left import watch_destinations
from spark_streams.deadletter.redrive.page_plan import PagePlan, Part
from spark_streams.deadletter.redrive.redrive_lock import RedriveRun, require_unchanged
from spark_streams.errors import RStreamError, StreamStateError
from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.model.keys import key_beside
from spark_streams.wire.connection.connection import Connection, ReplyError
from spark_streams.wire.replies.multi_exec import execute_packed, transact
from spark_streams.wire.replies.replies import find_errors
from spark_streams.wire.replies.reply_errors import is_no_such_key
from spark_streams.wire.replies.xinfo import stream_in

WATCHED_TRIES = 3  # of a transaction with its destination streams watched

_FENCE = b"by"  # a field of `redriven` that is not an ID
# Value of an ID: its entry was appended. Otherwise the last ID of `to` before that, as the entry may have been refused;
# empty: by an earlier version.
_WATCHED = b"watched"
_PAGE = 1_000  # entries


def redriven_key(to: str, stream: str) -> bytes:
    """Return the key with the IDs of a stream's dead letters whose entries are in `to`, while they are not deleted."""
    return key_beside(to, "redriven", stream)


def in_other_slots(run: RedriveRun, streams: Sequence[bytes]) -> list[bytes]:
    """Return those of these streams that are in other slots than the dead letters."""
    slots = run.session.get().together([raw(run.stream), *streams], lambda stream: stream)
    return [to for slot in slots[1:] for to in slot]


def append(run: RedriveRun, plan: PagePlan, streams: Sequence[bytes]) -> tuple[list[Part], list[RStreamError]]:
    """Append the entries for these streams, and note their dead letters there. Return the parts that were appended, and
    the errors of refused entries. The state is watched before and after.

    Raises RedriveTakenError, WrongKeyTypeError, IdsExhaustedError, ServerReplyError.
    """
    _watch_alone(run)
    run.write(replace(run.next(), to=tuple(map(text, streams))))
    parts: list[Part] = []
    errors: list[RStreamError] = []
    for to in streams:
        node, key, part = run.session.connection_for(to), redriven_key(text(to), run.stream), plan.part([to])
        results = None
        for is_watched in [*[True] * WATCHED_TRIES, False]:
            watch_destinations(node, run.stream, [key, to] if is_watched else [key], [to], len(part.ids))
            how = _WATCHED if is_watched else _last_id(node, to)
            run.watch()  # behind the WATCH of `redriven`
            noted = [word for entry in part.ids for word in (entry, how)]
            results = execute_packed(node, part.requests, len(part.ids), ("HSET", key, *noted))
            if results is not None:
                break
        refused = dict(find_errors(require_unchanged(run, results)[:-1]))
        if refused:
            node.execute("HDEL", key, *[part.ids[place] for place in refused])
        parts.append(part.without(refused))
        errors += [node.error_of(why, ("XADD", to)) for why in refused.values()]
    run.watch()
    return parts, errors


def finish(run: RedriveRun) -> None:
    """Delete the dead letters whose entries were appended. The state is watched.

    Raises StreamStateError if it is not known whether an entry was appended."""
    ids: list[bytes] = []
    for to in run.state.to:
        node, key = run.session.connection_for(raw(to)), redriven_key(to, run.stream)
        _, flat, kind = node.execute_all([("HSET", key, _FENCE, run.state.run), ("HGETALL", key), ("TYPE", to)])
        notes = dict(zip(flat[0::2], flat[1::2], strict=True))
        del notes[_FENCE]
        ids += [entry for entry, how in notes.items() if how == _WATCHED or (not how and kind == b"stream")]
        ids += _find_appended(run, raw(to), {entry: how for entry, how in notes.items() if how not in (_WATCHED, b"")})
    _watch_alone(run)
    replies = run.home.execute_all([("XRANGE", run.stream, entry, entry) for entry in ids])
    remaining = [entry for entry, entries in zip(ids, replies, strict=True) if entries]
    if remaining:
        run.write(run.next(len(remaining)), ("XDEL", run.stream, *remaining))
    forget(run)


def _last_id(node: Connection, to: bytes) -> bytes:
    """Return the last ID of a stream. Raises ServerReplyError."""
    [reply] = node.pipeline([("XINFO", "STREAM", to)])
    if isinstance(reply, ReplyError) and not is_no_such_key(reply):
        raise node.error_of(reply, ("XINFO", "STREAM", to))
    return bytes(MIN_ID if isinstance(reply, ReplyError) else stream_in(reply).last)


def _find_appended(run: RedriveRun, to: bytes, positions: Mapping[bytes, bytes]) -> list[bytes]:
    """Return those dead letters that `to` has an entry of. positions: of dead letters, the last ID of `to` before.

    Raises StreamStateError if it has none of a dead letter that exists."""
    replies = run.home.execute_all([("XRANGE", run.stream, entry, entry) for entry in positions])
    missing = {entry: entries[0][1] for entry, entries in zip(positions, replies, strict=True) if entries}
    node, appended = run.session.connection_for(to), list[bytes]()
    position = min((StreamId.parse(positions[entry]) for entry in missing), default=MAX_ID)
    while missing and position < MAX_ID:
        [page] = node.pipeline([("XRANGE", to, bytes(position.next()), "+", "COUNT", _PAGE)])
        if not page or isinstance(page, ReplyError):  # the key may hold something else now
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
    for to in run.state.to:
        node, key = run.session.connection_for(raw(to)), redriven_key(to, run.stream)
        node.execute("WATCH", key)
        run.watch()  # behind the WATCH of `redriven`: the notes of a process that has taken over stay
        require_unchanged(run, transact(node, [("DEL", key)]))
    run.watch()
    run.write(replace(run.state, to=()))


def _watch_alone(run: RedriveRun) -> None:
    """Watch the state and no stream: one that is written to all the time would break each transaction."""
    run.home.execute("UNWATCH")
    run.watch()
