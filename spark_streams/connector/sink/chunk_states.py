"""The states of a chunk that a task writes, and what follows each event. Pure: chunk_writer.py acts on it.

Labels are "event / action". With a ledger (exactly once):

    PREPARED ─NO_OTHER_WRITER / QUEUE→ QUEUED ─CONFIRMED / EXECUTE→ EXECUTING ─EXECUTED / SETTLE→ WRITTEN
       │                                 │                             │                           ↑
       │ MUST_COMPARE                    │ CHANGED                     │ CHANGED, LOST,            │
       │                                 │                             │ REFUSED_FOR_NOW           │
       ↓                                 ↓                             ↓                           │
    COMPARING ←──────────────────────────┴─────────────────────────────┘                           │
       │  └───NONE_MISSING / SETTLE────────────────────────────────────────────────────────────────┘
       └──────ROWS_MISSING / SEND_REST→ EXECUTING

The upper line is the fast path: while the server executes one chunk, the task builds the next one and queues it behind.
In COMPARING the task reads the ledger (action COMPARE; after REFUSED_FOR_NOW it waits first, PAUSE), and sends only the
rows that are missing. If the server refuses rows for good, EXECUTING leads to REFUSED, and the task fails.

Not drawn: these lead back to PREPARED. LOST in QUEUED: EXEC was not sent. DISCARDED in QUEUED: the chunk before it was
not executed. If a chunk's batch is complete already, NONE_MISSING leads from PREPARED to WRITTEN.

Without a ledger (at least once) there is no QUEUED: PREPARED ─NO_LEDGER / SEND→ EXECUTING. COMPARING then looks for
rows with explicit IDs in their stream, and sends all other rows again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How far a chunk has come."""

    PREPARED = "nothing of it is sent, or the server has dropped what was sent"
    QUEUED = "WATCH, the checks, MULTI and its commands are sent"
    EXECUTING = "EXEC is to be sent or is sent; without a ledger, the commands are"
    COMPARING = "some of its rows may be written: the ledger is to be read before any row is sent"
    REFUSED = "the server has refused rows of it for good, and has executed the rest"
    WRITTEN = "the server has all its rows; replicas may lack them"


class Event(Enum):
    """What happens to a chunk."""

    TURN = "the loop turns to it: start it, or read its next replies. It may come more than once"
    NO_OTHER_WRITER = "no other attempt or run can have written rows of it"
    MUST_COMPARE = "another attempt or run may have written rows of it, or its rows have explicit IDs"
    NO_LEDGER = "delivery=at-least-once"
    CONFIRMED = "the replies to the checks are as expected: the ledger has not changed"
    CHANGED = "the ledger has changed, or (rows with explicit IDs) the stream: EXEC has done nothing"
    DISCARDED = "the chunk before it was not executed, so the commands that were queued for this one are discarded"
    EXECUTED = "the server has executed all its commands"
    REFUSED_FOR_NOW = "the server has refused it, or rows of it, perhaps for a temporary reason"
    ROWS_REFUSED = "the server has refused rows of it for good"
    MARK_CORRECTED = "the ledger no longer names the rows that were refused"
    ROWS_MISSING = "some of its rows are not written yet"
    NONE_MISSING = "all its rows are written"
    LOST = "the connection was lost, or the server could not answer for the moment"


class Action(Enum):
    """What the loop does next for a chunk. It returns the events that follow."""

    START = "choose between the fast path and COMPARING"
    QUEUE = "send WATCH, the checks, MULTI and the commands"
    CONFIRM = "read the replies to the checks"
    EXECUTE = "send EXEC"
    SEND = "send the commands"
    READ_REPLIES = "read the replies to the commands"
    PAUSE = "wait before the next attempt; raise the error if it is not temporary"
    COMPARE = "WATCH and read the ledger: which rows are missing?"
    SEND_REST = "send MULTI, the rows that are missing, and EXEC"
    CORRECT_MARK = "correct the mark in the ledger: it names only rows that are written"
    FAIL = "raise the error of the first row that was refused"
    SETTLE = "record that it is executed, and trim"
    NOTHING = "nothing"


# Actions that need idle connections: the loop first reads all outstanding replies.
AFTER_ALL_REPLIES = frozenset({Action.PAUSE, Action.COMPARE, Action.CORRECT_MARK})


@dataclass(frozen=True)
class Step:
    """The next state, and what the loop does then. The state is entered first: if the action fails, the chunk is in the
    new state, and the event LOST follows. WRITTEN has no LOST: the session that SETTLE uses retries by itself, so
    that only final errors leave it."""

    state: State
    action: Action


class ImpossibleEventError(Exception):
    """An event that cannot happen in this state: a defect of the loop."""


_S, _E, _A = State, Event, Action

TABLE: Mapping[State, Mapping[Event, Step]] = {
    State.PREPARED: {
        _E.TURN: Step(_S.PREPARED, _A.START),
        _E.NO_OTHER_WRITER: Step(_S.QUEUED, _A.QUEUE),
        _E.NO_LEDGER: Step(_S.EXECUTING, _A.SEND),
        _E.MUST_COMPARE: Step(_S.COMPARING, _A.COMPARE),
        _E.NONE_MISSING: Step(_S.WRITTEN, _A.NOTHING),
        _E.LOST: Step(_S.PREPARED, _A.START),
    },
    State.QUEUED: {
        _E.TURN: Step(_S.QUEUED, _A.CONFIRM),
        _E.CONFIRMED: Step(_S.EXECUTING, _A.EXECUTE),
        _E.CHANGED: Step(_S.COMPARING, _A.COMPARE),
        _E.DISCARDED: Step(_S.PREPARED, _A.NOTHING),  # its TURN is still to be handled, and starts it again
        _E.LOST: Step(_S.PREPARED, _A.START),
    },
    State.EXECUTING: {
        _E.TURN: Step(_S.EXECUTING, _A.READ_REPLIES),
        _E.EXECUTED: Step(_S.WRITTEN, _A.SETTLE),
        _E.CHANGED: Step(_S.COMPARING, _A.COMPARE),
        _E.REFUSED_FOR_NOW: Step(_S.COMPARING, _A.PAUSE),
        _E.ROWS_REFUSED: Step(_S.REFUSED, _A.CORRECT_MARK),
        _E.LOST: Step(_S.COMPARING, _A.COMPARE),
    },
    State.COMPARING: {
        _E.TURN: Step(_S.COMPARING, _A.COMPARE),
        _E.ROWS_MISSING: Step(_S.EXECUTING, _A.SEND_REST),
        _E.NONE_MISSING: Step(_S.WRITTEN, _A.SETTLE),
        _E.LOST: Step(_S.COMPARING, _A.COMPARE),
    },
    State.REFUSED: {
        _E.MARK_CORRECTED: Step(_S.REFUSED, _A.FAIL),
        _E.LOST: Step(_S.REFUSED, _A.CORRECT_MARK),
    },
    State.WRITTEN: {
        _E.TURN: Step(_S.WRITTEN, _A.NOTHING),
    },
}


def advance(state: State, event: Event) -> Step:
    """Return the step after an event. Raises ImpossibleEventError if the table has none."""
    step = TABLE[state].get(event)
    if step is None:
        raise ImpossibleEventError(f"event {event.name} cannot happen to a chunk in state {state.name}")
    return step
