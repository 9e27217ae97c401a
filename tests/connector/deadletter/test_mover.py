"""Notes on a page that is being moved: those of a process that stood still come too late, and nothing is left."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import redis

from spark_streams.base.ids import MAX_ID
from spark_streams.connector.deadletter.mover import (
    WATCHED,
    RedriveRun,
    RedriveState,
    begin_or_continue,
    finish,
    redrive_key,
    redriven_key,
)
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.replies import transact
from spark_streams.connector.wire.session import Session
from tests.connector.deadletter.making import DEAD
from tools.sending import KilledError, dying_at
from tools.servers.server import Server

watches_streams = True  # and runs under both rules of WATCH

KEY = redriven_key("s", DEAD)
PARKING = "parked"


def begun(session: Session) -> RedriveRun:
    """A run whose state says that a page is on its way to stream `s`."""
    run = RedriveRun(session, DEAD, replace(RedriveState.begin("options", MAX_ID), to=("s",)))
    session.get().execute(*run.state.store(DEAD))
    run.watch()
    return run


@pytest.mark.parametrize("noted", [False, True])
def test_a_note_that_comes_after_the_page_is_finished_is_refused(
    server: Server, client: redis.Redis, noted: bool
) -> None:
    """The process that stood still watches the notes, and may append entries in the same transaction only."""
    if noted:
        client.hset(KEY, client.xadd(DEAD, {"n": 1}), WATCHED)
    with Session(Address.parse(server.url)) as session, connect(Address.parse(server.url)) as late:
        late.execute("WATCH", KEY)
        finish(begun(session), PARKING)
        assert transact(late, [("HSET", KEY, "2-0", WATCHED)]) is None
    assert not client.exists(KEY)
    assert client.xlen(DEAD) == 0


@pytest.mark.parametrize(
    "wrong",
    ['{"run": ' * 1_000, {"bound": 5}, {"to": 5}, {"to": [1, "a"]}, {"serial": "1"}, {"moved": True}, {"more": 1}],
    ids=lambda wrong: str(wrong)[:13],
)
def test_a_state_that_another_program_has_written_is_refused_by_name(
    server: Server, client: redis.Redis, wrong: str | dict[str, object]
) -> None:
    state = RedriveState.begin("options", MAX_ID)
    client.set(redrive_key(DEAD), wrong if isinstance(wrong, str) else json.dumps({**asdict(state), **wrong}))
    with (
        connect(Address.parse(server.url)) as connection,
        pytest.raises(StreamStateError, match="this version cannot read it"),
    ):
        begin_or_continue(connection, DEAD, state)


@pytest.mark.parametrize("executed", [False, True])
@pytest.mark.parametrize("turn", range(1, 4))
def test_a_process_that_is_killed_while_it_looks_leaves_no_note_of_its_own(
    server: Server, client: redis.Redis, turn: int, executed: bool
) -> None:
    with Session(Address.parse(server.url)) as session:
        run = begun(session)
        with dying_at(turn, executed), pytest.raises(KilledError):
            finish(run, PARKING)
    assert not client.exists(KEY)
    assert client.exists(redrive_key(DEAD))


def test_a_finished_page_counts_what_was_parked_apart(server: Server, client: redis.Redis) -> None:
    for to in ("s", "s", PARKING):
        client.hset(redriven_key(to, DEAD), client.xadd(DEAD, {"n": 1}), WATCHED)
    with Session(Address.parse(server.url)) as session:
        run = begun(session)
        run.write(replace(run.next(), to=("s", PARKING)))
        run.watch()
        finish(run, PARKING)
        assert (run.state.moved, run.state.parked) == (2, 1)
