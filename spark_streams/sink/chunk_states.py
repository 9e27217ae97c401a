"""The states of a chunk that a task writes, and what follows each event. Pure: chunk_writer.py acts on it.

    with a ledger        PREPARED ─QUEUE→ QUEUED ─EXECUTE→ EXECUTING ─SETTLE→ ANSWERED → WRITTEN
    without a ledger     PREPARED ──────────SEND─────────→ EXECUTING ─SETTLE→ ANSWERED → WRITTEN

That is the fast way: while the server executes one chunk, the next one is made and queued behind it. Whatever does not
go that way becomes CONFLICT or UNKNOWN. The ledger is read then, and the rows that are missing are sent:

    CONFLICT, UNKNOWN ─LOOK→ ─SEND_REST→ EXECUTING
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How far a chunk has come."""

    PREPARED = "the server has nothing of it"
    QUEUED = "WATCH, the questions, MULTI and its commands are sent"
    EXECUTING = "EXEC is sent; without a ledger, its commands are"
    CONFLICT = "rows of it are not written, and others may have written some: the ledger is to be read"
    UNKNOWN = "the connection was lost: it may be written, and the ledger is to be read"
    REFUSED = "the server has refused rows of it for good, and has executed the rest"
    ANSWERED = "this server has written it; replicas may lack it"
    WRITTEN = "done"


class Event(Enum):
    """What happens to a chunk."""

    TURN = "the loop comes to it"
    FREE = "nobody else can have written rows of it"
    SHARED = "others may have written rows of it, or its rows have ids of their own"
    NO_LEDGER = "nothing keeps count of its rows"
    CONFIRMED = "the ledger is as this task knows it"
    CHANGED = "the ledger has changed, or the stream of a row with its own id: those rows are not written"
    OVERTAKEN = "the chunk before it was not written: what was queued of this one is discarded"
    EXECUTED = "the server has executed all its commands"
    NOT_NOW = "the server has refused it, or rows of it, for a reason that may pass"
    ROWS_REFUSED = "the server has refused rows of it for good"
    TAKEN_BACK = "the ledger no longer names the rows that were refused"
    ROWS_MISSING = "some of its rows are not written yet"
    NONE_MISSING = "all its rows are written"
    LOST = "the connection was lost, or the server could not answer for the moment"
    SAFE = "as many replicas have it as option waitReplicas asks for"
    GONE = "another server has taken over, which lacks it"


class Action(Enum):
    """What the loop does next for a chunk. It returns the events that follow."""

    START = "find out which way the chunk goes"
    QUEUE = "send WATCH, the questions, MULTI and the commands"
    CONFIRM = "read the answers to the questions"
    EXECUTE = "send EXEC"
    SEND = "send the commands"
    HEAR = "read the replies to the commands"
    PAUSE = "wait before the next attempt"
    LOOK = "WATCH and read the ledger: which rows are missing?"
    SEND_REST = "send the rows that are missing, with EXEC"
    TAKE_BACK = "correct the mark: it names only rows that are written"
    FAIL = "raise the error of the first row that was refused"
    SETTLE = "remember that it is written, and trim"
    NOTHING = "nothing"


# No reply to another chunk may be on its way before these.
SILENT = frozenset({Action.PAUSE, Action.LOOK, Action.TAKE_BACK})


@dataclass(frozen=True)
class Step:
    """The next state, and what to do on the way to it."""

    state: State
    action: Action


class ImpossibleEventError(Exception):
    """An event that cannot happen in this state: a defect of the loop."""


_S, _E, _A = State, Event, Action

TABLE: Mapping[State, Mapping[Event, Step]] = {
    State.PREPARED: {
        _E.TURN: Step(_S.PREPARED, _A.START),
        _E.FREE: Step(_S.QUEUED, _A.QUEUE),
        _E.NO_LEDGER: Step(_S.EXECUTING, _A.SEND),
        _E.SHARED: Step(_S.CONFLICT, _A.LOOK),
        _E.NONE_MISSING: Step(_S.WRITTEN, _A.NOTHING),
        _E.LOST: Step(_S.PREPARED, _A.START),
    },
    State.QUEUED: {
        _E.TURN: Step(_S.QUEUED, _A.CONFIRM),
        _E.CONFIRMED: Step(_S.EXECUTING, _A.EXECUTE),
        _E.CHANGED: Step(_S.CONFLICT, _A.LOOK),
        _E.OVERTAKEN: Step(_S.PREPARED, _A.NOTHING),
        _E.LOST: Step(_S.PREPARED, _A.START),
    },
    State.EXECUTING: {
        _E.TURN: Step(_S.EXECUTING, _A.HEAR),
        _E.EXECUTED: Step(_S.ANSWERED, _A.SETTLE),
        _E.CHANGED: Step(_S.CONFLICT, _A.LOOK),
        _E.NOT_NOW: Step(_S.CONFLICT, _A.PAUSE),
        _E.ROWS_REFUSED: Step(_S.REFUSED, _A.TAKE_BACK),
        _E.LOST: Step(_S.UNKNOWN, _A.LOOK),
    },
    State.CONFLICT: {
        _E.TURN: Step(_S.CONFLICT, _A.LOOK),
        _E.ROWS_MISSING: Step(_S.EXECUTING, _A.SEND_REST),
        _E.NONE_MISSING: Step(_S.ANSWERED, _A.SETTLE),
        _E.LOST: Step(_S.CONFLICT, _A.LOOK),
    },
    State.UNKNOWN: {
        _E.TURN: Step(_S.UNKNOWN, _A.LOOK),
        _E.ROWS_MISSING: Step(_S.EXECUTING, _A.SEND_REST),
        _E.NONE_MISSING: Step(_S.ANSWERED, _A.SETTLE),
        _E.LOST: Step(_S.UNKNOWN, _A.LOOK),
    },
    State.REFUSED: {
        _E.TAKEN_BACK: Step(_S.REFUSED, _A.FAIL),
        _E.LOST: Step(_S.REFUSED, _A.TAKE_BACK),
    },
    State.ANSWERED: {
        _E.TURN: Step(_S.ANSWERED, _A.NOTHING),
        _E.SAFE: Step(_S.WRITTEN, _A.NOTHING),
        _E.GONE: Step(_S.PREPARED, _A.START),
    },
    State.WRITTEN: {
        _E.TURN: Step(_S.WRITTEN, _A.NOTHING),
    },
}


def advance(state: State, event: Event) -> Step:
    """Return what follows an event. Raises ImpossibleEventError for one that the table does not have."""
    step = TABLE[state].get(event)
    if step is None:
        raise ImpossibleEventError(f"a chunk that is {state.name} cannot meet {event.name}")
    return step
