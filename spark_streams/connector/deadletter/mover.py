"""Move pages of dead letters. Each dead letter is moved once, whichever process dies at any time.

    begin    → WATCH state   GET state                       is the state still ours?
             → XRANGE stream                                 a page, without dead letters that were moved before
    append   → MULTI   SET state with `to`   EXEC
             → WATCH redriven to   XINFO to   GET state      can the streams take the entries?
             → MULTI   XADD to …   HSET redriven ids   EXEC  the entries, and a note on their dead letters
    delete   → WATCH state   GET state
             → MULTI   XDEL stream ids   SET state   EXEC
    forget   → MULTI   DEL redriven   EXEC, then MULTI   SET state without `to`   EXEC

    rstream:redrive:{stream}          the state: progress, and the process that may go on; `to` names the streams that
                                      a page is on its way to
    rstream:redriven:{to}:<stream>    the notes: the dead letters of that page that `to` has an entry of

**Order.** Entries are appended before their dead letters are deleted, so a dead letter whose entry is refused stays
where it is. One transaction appends to all streams of a server, or of one slot in a cluster. Dead letters that another
program deletes while their entries are appended are counted.

**State.** The lease (redrive.py) refuses a second process while the first one lives. Its session expires: a process
that stood still for longer than that (SIGSTOP, a machine asleep) may wake up beside its successor. So every transaction
WATCHes the state, and writes the next state. A process that was not the last one to write it moves nothing. Each
transaction writes another state. So the state tells whether a transaction whose reply was lost was executed, also if
the server executes it late. A run that was killed continues under the same bound if it is started again with the same
options within a day.

**Notes.** They tell the next process, or this one after a lost connection, which entries were appended. `finish`
handles a state with `to` that an earlier process or connection has written. It touches `redriven` before it reads: a
transaction of a process that stood still has been executed by then, or fails by its WATCH.

**Busy streams.** While `to` is watched, no XADD within EXEC is refused: the note proves that the entries were appended,
also if `to` is deleted later. Live streams are written to all the time, and a transaction that WATCHes them fails each
time. After a few failures they are not watched. An XADD that fails within EXEC does not stop the HSET (FACTS R14). The
mover then removes the IDs that were refused. If the process dies before that, `finish` looks for the entries behind the
position in the note. A dead letter whose entry it does not find stays, and an error asks the operator: the entry was
refused, or it was appended and removed since.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.deadletter.envelope import raw, split_mark, split_previous, text
from spark_streams.connector.deadletter.post import watch_destinations
from spark_streams.connector.deadletter.redrive_plan import Decision, PagePlan, RedrivePart
from spark_streams.connector.errors import RedriveTakenError, RStreamError, ServerReplyError, StreamStateError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.operator_commands import redrive_command, shell_words
from spark_streams.connector.wire.connection import Argument, Connection, Reply, Server
from spark_streams.connector.wire.replies import WATCHED_TRIES, execute_packed, find_errors, is_wrong_type, transact
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import stream_states

KEPT_MS = 86_400_000


def redrive_key(stream: str) -> bytes:
    """Return the key of the state of a redrive of this stream."""
    return key_beside(stream, "redrive")


@dataclass(frozen=True)
class RedriveState:
    """State of a redrive; the names are JSON fields."""

    run: str  # a token
    serial: int  # number of tried transactions of this run
    orders: str  # a digest of its options
    bound: str  # the last dead letter that it may move
    moved: int  # dead letters, of all processes that worked on the run
    parked: int
    to: tuple[str, ...]  # the destinations of a page that is being moved

    @classmethod
    def begin(cls, digest: str, bound: StreamId) -> RedriveState:
        """Return a run that has moved nothing yet."""
        return cls(secrets.token_hex(8), 0, digest, str(bound), moved=0, parked=0, to=())

    @classmethod
    def parse(cls, value: bytes | None) -> RedriveState | None:
        """Parse a state. None if there is none, or if this version cannot read it."""
        try:
            state = cls(**json.loads(value or b""))
            StreamId.parse(state.bound)
            types = [str, int, str, str, int, int, list, *[str] * len(state.to)]
            is_ours = [type(one) for one in (*vars(state).values(), *state.to)] == types
            return replace(state, to=tuple(state.to)) if is_ours else None
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None

    def __bytes__(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def after(self, serial: int, moved: int, parked: int) -> RedriveState:
        """Return the state after the transaction with this number, which moves and parks this many."""
        return replace(self, serial=serial, moved=self.moved + moved, parked=self.parked + parked)

    def store(self, stream: str) -> tuple[Argument, ...]:
        """Return the command that writes the state. It expires unless a page is being moved."""
        expiry = () if self.to else ("PX", KEPT_MS)
        return ("SET", redrive_key(stream), bytes(self), *expiry)


def begin_or_continue(server: Server, stream: str, fresh: RedriveState) -> tuple[RedriveState, bool]:
    """Write the state of this run. Return it, and whether it continues a killed run. fresh: the state of a new run.

    Call it under the lease, and again with the same state after ServerError: a try that is executed late finds another
    state. Raises StreamStateError if there is a state that this version cannot read.
    """
    key, home = redrive_key(stream), server.connection_for(stream)
    while True:
        _, value = home.execute_all([("WATCH", key), ("GET", key)])
        stored = RedriveState.parse(value)
        if stored is None and value is not None:
            home.execute("UNWATCH")
            raise StreamStateError(
                f"stream {stream!r} at {server.address}: a redrive by another version of spark-streams has left its "
                f"state in key {text(key)!r}, and this version cannot read it. Run {redrive_command(stream)} with "
                "that version until it ends"
            )
        goes_on = stored is not None and stored.orders == fresh.orders and stored.run != fresh.run
        state = replace(stored, run=secrets.token_hex(8)) if stored is not None and goes_on else fresh
        state = replace(state, to=tuple(sorted(stored.to)) if stored is not None else ())
        if transact(home, [state.store(stream)]) is not None:
            return state, goes_on


class RedriveRun:
    """A running redrive. stream: of the dead letters; state: the last known state on the server. It is watched before
    each transaction, and written by each."""

    def __init__(self, session: Session, stream: str, state: RedriveState) -> None:
        self.session = session
        self.stream = stream
        self.state = state
        self._serial = state.serial

    @property
    def home(self) -> Connection:
        """The connection to the server that holds the dead letters and the state."""
        return self.session.connection_for(self.stream)

    def stored(self) -> RedriveState | None:
        """Watch the state. Return it if it is this run's, else None."""
        key = redrive_key(self.stream)
        state = RedriveState.parse(self.home.execute_all([("WATCH", key), ("GET", key)])[1])
        return state if state is not None and state.run == self.state.run else None

    def watch(self) -> None:
        """Do the same. Raises RedriveTakenError if the state is another run's."""
        state = self.stored()
        if state is None:
            self.home.execute("UNWATCH")
            raise RedriveTakenError(
                f"another process has taken over the redrive of stream {self.stream!r} at {self.session.address} "
                "while this one stood still, or it did so for a day. If none runs, start it again: it moves the rest"
            )
        self.state = state

    def next(self, moved: int = 0, parked: int = 0) -> RedriveState:
        """Return the state after a transaction that moves this many. Each try of a transaction has another state."""
        self._serial = max(self._serial, self.state.serial) + 1
        return self.state.after(self._serial, moved, parked)

    def write(self, state: RedriveState, *before: Sequence[Argument]) -> None:
        """Execute commands and write the state in one transaction. Raises a temporary ServerReplyError if the state has
        changed since it was watched."""
        require_unchanged(self, transact(self.home, [*before, state.store(self.stream)]))
        self.state = state

    def end(self) -> None:
        """Delete the state, if it is this run's."""
        if self.stored() is None:
            self.home.execute("UNWATCH")
        else:
            transact(self.home, [("DEL", redrive_key(self.stream))])


def require_unchanged(run: RedriveRun, replies: list[Reply] | None) -> list[Reply]:
    """Return the replies to a transaction. Raises a temporary ServerReplyError if it was not executed."""
    if replies is None:
        raise ServerReplyError(f"the redrive of stream {run.stream!r} was changed meanwhile", "TRYAGAIN")
    return replies


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
        marks = {split_previous(mark.previous)[0] for _, fields in page if (mark := split_mark(fields)[1]) is not None}
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
            f"delete the note on them, and start the redrive again: redis-cli DEL {shell_words([key])}"
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


class Mover:
    """Transactions of one run. parking: stream of dead letters that were redriven too often; vanished: dead letters
    that were moved, but that another program had deleted just before."""

    def __init__(self, run: RedriveRun, parking: str) -> None:
        self.vanished = 0
        self._run, self._parking = run, parking
        self._sent: dict[int, PagePlan] = {}  # whole pages by serial, since the last transaction that has succeeded

    def begin(self) -> PagePlan | None:
        """Watch the state, and finish the page that an earlier process or connection began. Return the plan of a page
        whose move turns out to be executed; otherwise None, and a page may be read and moved.

        Raises RedriveTakenError, ServerError; then it may be called again.
        """
        run = self._run
        run.watch()
        moved = self._sent.get(run.state.serial)
        if run.state.to:
            finish(run, self._parking)
            run.watch()
        if moved is not None:
            run.home.execute("UNWATCH")
            self._sent.clear()
        return moved

    def move(self, plan: PagePlan) -> None:
        """Move the dead letters of a page that was read since `begin`. Raises as `begin` does, and ServerReplyError if
        a stream refuses entries: their dead letters stay."""
        run = self._run
        if not len(plan.rows):
            run.home.execute("UNWATCH")
            return
        destinations = [plan.to[code] for code in np.unique(plan.target).tolist()]
        run.write(replace(run.next(), to=tuple(map(text, destinations))))
        refused: list[RStreamError] = []
        places = list[int]()
        for streams in by_slot(run, destinations):
            part, errors = self._append(plan, streams)
            places += part.places.tolist()
            refused += errors
        self._delete(plan, places)
        forget(run)
        self._sent.clear()
        if refused:
            raise ServerReplyError(
                f"{len(refused)} dead letters of stream {run.stream!r} at {run.session.address} could not be moved, "
                f"and stay in it: {refused[0].message}"
            )

    def _append(self, plan: PagePlan, streams: Sequence[bytes]) -> tuple[RedrivePart, list[RStreamError]]:
        """Append the entries for these streams, and note their dead letters there. Return the part that was appended,
        and the errors of refused entries."""
        run, part = self._run, plan.part(streams)
        node = run.session.connection_for(streams[0])
        keys = [redriven_key(text(to), run.stream) for to in streams]
        of_stream: dict[bytes, list[bytes]] = {to: [] for to in streams}
        for place, entry in zip(part.places.tolist(), part.ids, strict=True):
            of_stream[plan.to[plan.target[place]]].append(entry)
        most = max(map(len, of_stream.values()))
        results = None
        for is_watched in [*[True] * WATCHED_TRIES, False]:
            watch_destinations(node, run.stream, [*keys, *streams] if is_watched else keys, streams, most)
            position = dict.fromkeys(streams, WATCHED)
            if not is_watched:
                position = {to: bytes(state.last) for to, state in stream_states(node, streams).items()}
            run.watch()  # behind the WATCH of `redriven`
            notes: list[Sequence[Argument]] = []
            for key, (to, ids) in zip(keys, of_stream.items(), strict=True):
                notes.append(("HSET", key, *[word for entry in ids for word in (entry, position[to])]))
            results = execute_packed(node, part.requests, len(part.ids), *notes)
            if results is not None:
                break
        refused = dict(find_errors(require_unchanged(run, results)[: len(part.ids)]))
        if not refused:
            return part, []
        target = {place: plan.to[plan.target[part.places[place]]] for place in refused}
        node.execute_all([("HDEL", redriven_key(text(to), run.stream), part.ids[at]) for at, to in target.items()])
        return part.without(refused), [node.error_of(why, ("XADD", target[at])) for at, why in refused.items()]

    def _delete(self, plan: PagePlan, places: Sequence[int]) -> None:
        """Delete the dead letters whose entries were appended. places: of the plan's rows."""
        if not places:  # all of them were refused
            return
        run = self._run
        run.watch()
        moved = int(np.count_nonzero(np.asarray(places) < plan.count(Decision.MOVE)))
        state = run.next(moved, len(places) - moved)
        if len(places) == len(plan.rows):  # else the page is read again: it tells what is refused
            self._sent[state.serial] = plan
        ids = [plan.ids[place] for place in places]
        replies = transact(run.home, [("XDEL", run.stream, *ids), state.store(run.stream)])
        self.vanished += len(ids) - require_unchanged(run, replies)[0]
        run.state = state


class Rehearsal(Mover):
    """A dry run: it counts what would be moved, and sends nothing."""

    def begin(self) -> None:
        """Do nothing: a dry run leaves no state."""

    def move(self, plan: PagePlan) -> None:
        self._run.state = self._run.state.after(0, plan.count(Decision.MOVE), plan.count(Decision.PARK))
