"""The table of a chunk's states: every state with every event, and what holds on every way through it."""

from __future__ import annotations

import itertools

import pytest

from spark_streams.connector.sink.chunk_states import (
    AFTER_ALL_REPLIES,
    TABLE,
    Action,
    Event,
    ImpossibleEventError,
    State,
    advance,
)

# state, event, next state, action: all that may happen. Anything else is a defect of the loop.
POSSIBLE = """
PREPARED   TURN               PREPARED   START
PREPARED   NO_OTHER_WRITER    QUEUED     QUEUE
PREPARED   MUST_COMPARE       COMPARING  COMPARE
PREPARED   NO_LEDGER          EXECUTING  SEND
PREPARED   NONE_MISSING       WRITTEN    NOTHING
PREPARED   LOST               PREPARED   START
QUEUED     TURN               QUEUED     CONFIRM
QUEUED     CONFIRMED          EXECUTING  EXECUTE
QUEUED     CHANGED            COMPARING  COMPARE
QUEUED     DISCARDED          PREPARED   NOTHING
QUEUED     LOST               PREPARED   START
EXECUTING  TURN               EXECUTING  READ_REPLIES
EXECUTING  EXECUTED           WRITTEN    SETTLE
EXECUTING  CHANGED            COMPARING  COMPARE
EXECUTING  REFUSED_FOR_NOW    COMPARING  PAUSE
EXECUTING  ROWS_REFUSED       REFUSED    CORRECT_MARK
EXECUTING  LOST               COMPARING  COMPARE
COMPARING  TURN               COMPARING  COMPARE
COMPARING  ROWS_MISSING       EXECUTING  SEND_REST
COMPARING  NONE_MISSING       WRITTEN    SETTLE
COMPARING  LOST               COMPARING  COMPARE
REFUSED    MARK_CORRECTED     REFUSED    FAIL
REFUSED    LOST               REFUSED    CORRECT_MARK
WRITTEN    TURN               WRITTEN    NOTHING
"""
EXPECTED = {
    (State[state], Event[event]): (State[follows], Action[action])
    for state, event, follows, action in (line.split() for line in POSSIBLE.strip().splitlines())
}
STEPS = [(state, event, step) for state, events in TABLE.items() for event, step in events.items()]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_event_in_every_state_has_one_meaning(state: State, event: Event) -> None:
    if (state, event) in EXPECTED:
        step = advance(state, event)
        assert (step.state, step.action) == EXPECTED[state, event]
    else:
        with pytest.raises(
            ImpossibleEventError, match=f"event {event.name} cannot happen to a chunk in state {state.name}"
        ):
            advance(state, event)


def test_every_state_event_and_action_is_used() -> None:
    assert {*TABLE} == {*State}
    assert {event for _, event, _ in STEPS} == {*Event}
    assert {step.action for *_, step in STEPS} == {*Action}


@pytest.mark.parametrize("state", [state for state in State if state is not State.REFUSED])
def test_from_every_state_a_chunk_can_be_written(state: State) -> None:
    """But for one that the server has refused: its task fails."""
    reached = {state}
    while more := {step.state for one, _, step in STEPS if one in reached} - reached:
        reached |= more
    assert State.WRITTEN in reached


@pytest.mark.parametrize("state", [state for state in State if state is not State.WRITTEN])
def test_a_lost_connection_is_foreseen_wherever_the_loop_talks_to_the_server(state: State) -> None:
    assert Event.LOST in TABLE[state]


def test_a_chunk_is_written_only_if_it_was_executed_or_nothing_of_it_is_missing() -> None:
    events = {(state, event) for state, event, step in STEPS if step.state is State.WRITTEN is not state}
    assert events == {
        (State.EXECUTING, Event.EXECUTED),
        (State.COMPARING, Event.NONE_MISSING),
        (State.PREPARED, Event.NONE_MISSING),
    }


def test_rows_that_may_be_written_are_sent_only_after_a_comparison() -> None:
    """From COMPARING, the loop sends only the rows that the comparison has found missing."""
    sending = {Action.QUEUE, Action.EXECUTE, Action.SEND, Action.SEND_REST}
    for event, step in TABLE[State.COMPARING].items():
        assert (step.action in sending) == (event is Event.ROWS_MISSING)


def test_exec_follows_only_answers_that_were_expected() -> None:
    assert [event for _, event, step in STEPS if step.action is Action.EXECUTE] == [Event.CONFIRMED]


@pytest.mark.parametrize("action", list(Action))
def test_the_ledger_is_read_and_corrected_while_nothing_else_is_under_way(action: Action) -> None:
    assert (action in AFTER_ALL_REPLIES) == (action.name in ("PAUSE", "COMPARE", "CORRECT_MARK"))
