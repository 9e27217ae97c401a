"""Dead letters that go to streams in other slots of a cluster: no transaction covers both sides.

    rstream:redrive:{stream}          the state: `to` names the streams that a page is on its way to
    rstream:redriven:{to}:<stream>    the dead letters of that page that `to` has an entry of

    append     → MULTI   SET state with `to`   EXEC
               → WATCH redriven   XINFO to   GET state   MULTI   XADD to …   HSET redriven ids   EXEC      for each `to`
               (mover.py deletes the dead letters)
    forget     → WATCH redriven   GET state   MULTI   DEL redriven   EXEC
               → MULTI   SET state without `to`   EXEC

`finish` is for a state with `to` that another process, or a connection, has left. It writes into `redriven` before it
reads: a transaction of a process that stood still meanwhile has been executed by then, or fails by its WATCH.

An XADD that fails within EXEC does not hold up the HSET (FACTS R14). `append` then removes the ids that were refused.
If the process dies before that, `finish` believes `redriven` only if `to` holds a stream. Otherwise no entry of the
page is in `to`, and its dead letters stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_streams.deadletter.envelope import raw, text
from spark_streams.deadletter.ids_left import watch_destinations
from spark_streams.deadletter.redrive.page_plan import PagePlan, Part
from spark_streams.deadletter.redrive.redrive_lock import RedriveRun, require_unchanged
from spark_streams.errors import RStreamError
from spark_streams.model.keys import key_beside
from spark_streams.wire.replies.multi_exec import execute_packed, transact
from spark_streams.wire.replies.replies import errors_among

_FENCE = b"by"  # a field of `redriven` that is not an id


def redriven_key(to: str, stream: str) -> bytes:
    """Return the key of the dead letters of a stream that `to` has an entry of, and that may not be deleted yet."""
    return key_beside(to, "redriven", stream)


def in_other_slots(run: RedriveRun, streams: Sequence[bytes]) -> list[bytes]:
    """Return those of these streams that are in other slots than the dead letters."""
    slots = run.session.get().together([raw(run.stream), *streams], lambda stream: stream)
    return [to for slot in slots[1:] for to in slot]


def append(run: RedriveRun, plan: PagePlan, streams: Sequence[bytes]) -> tuple[list[Part], list[RStreamError]]:
    """Append the entries for these streams, and note their dead letters there. Return those, and the errors of what was
    refused. The state is watched, before and then.

    Raises RedriveTakenError, WrongKeyTypeError, IdsExhaustedError, ServerReplyError.
    """
    _watch_alone(run)
    run.write(replace(run.next(), to=tuple(map(text, streams))))
    parts: list[Part] = []
    errors: list[RStreamError] = []
    for to in streams:
        there, key, part = run.session.of(to), redriven_key(text(to), run.stream), plan.part([to])
        watch_destinations(there, run.stream, [key], [to], len(part.ids))
        run.watch()  # behind the WATCH of `redriven`
        noted = [word for entry in part.ids for word in (entry, b"")]
        results = execute_packed(there, part.requests, len(part.ids), ("HSET", key, *noted))
        refused = dict(errors_among(require_unchanged(run, results)[:-1]))
        if refused:
            there.execute("HDEL", key, *[part.ids[place] for place in refused])
        parts.append(part.without(refused))
        errors += [there.error_of(why, ("XADD", to)) for why in refused.values()]
    run.watch()
    return parts, errors


def finish(run: RedriveRun) -> None:
    """Delete the dead letters whose entries were appended. The state is watched."""
    ids: list[bytes] = []
    for to in run.state.to:
        there, key = run.session.of(raw(to)), redriven_key(to, run.stream)
        _, flat, kind = there.execute_all([("HSET", key, _FENCE, run.state.run), ("HGETALL", key), ("TYPE", to)])
        if kind == b"stream":
            ids += [entry for entry in flat[0::2] if entry != _FENCE]
    _watch_alone(run)
    found = run.home.execute_all([("XRANGE", run.stream, entry, entry) for entry in ids])
    left = [entry for entry, entries in zip(ids, found, strict=True) if entries]
    if left:
        run.write(run.next(len(left)), ("XDEL", run.stream, *left))
    forget(run)


def forget(run: RedriveRun) -> None:
    """Delete the notes on a page whose dead letters are deleted."""
    for to in run.state.to:
        there, key = run.session.of(raw(to)), redriven_key(to, run.stream)
        there.execute("WATCH", key)
        run.watch()  # behind the WATCH of `redriven`: the notes of a process that has taken over stay
        require_unchanged(run, transact(there, [("DEL", key)]))
    run.watch()
    run.write(replace(run.state, to=()))


def _watch_alone(run: RedriveRun) -> None:
    """Watch the state and no stream: one that is written to all the time would break each transaction."""
    run.home.execute("UNWATCH")
    run.watch()
