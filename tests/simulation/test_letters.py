"""Entries that do not fit, their dead letters, and redrives: plans have them, and what goes wrong with them is seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spark_streams.connector.deadletter import post
from spark_streams.connector.deadletter.mover import Mover
from spark_streams.connector.deadletter.post import Command, FailedEntry
from spark_streams.connector.deadletter.redrive import RedriveLease
from spark_streams.connector.deadletter.redrive_plan import PagePlan
from spark_streams.connector.wire.connection import Connection
from tests.simulation.test_sees import plan
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.setup import Plan, Step

SERVER = ProcessServer()
WHOLE, KILLED, STANDS = 0.9, 0.5, 0.59  # amount and how of a step


def letters(*steps: Step | str) -> Plan:
    """Three dead letters, then these steps."""
    made = plan(
        Step("misfit", amount=0.5), "trigger", "trigger", *steps, "trigger", mode="DEADLETTER", deadLetterStream="dead"
    )
    return replace(made, setup=replace(made.setup, has_values=True))


def redrive(requests: int | None = None, how: float = KILLED) -> Step:
    """A redrive of all dead letters, for so many requests, or to its end."""
    return Step("redrive", amount=WHOLE if requests is None else (requests + 0.5) / 80, how=how)


@pytest.fixture
def failures() -> Iterator[Callable[[Plan], set[str]]]:
    """A function that runs a plan, and returns the kinds of its failures without details."""
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        yield lambda given: {one.kind.split(" | ")[0] for one in run(SERVER, client, given).failures}


@pytest.mark.in_turn
def test_plans_send_dead_letters_back_and_kill_overtake_and_refuse_redrives() -> None:
    wanted = {
        r"RedriveReport\(.* moved=[1-9]",
        r"RedriveReport\(.* parked=[1-9]",
        r"RedriveReport\(.* goes_on=True",
        "another process moves or purges",
        "another process has taken over",
    }
    told: list[str] = []
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        for made in (made for seed in range(1, 800) if (made := make(seed)).setup.has_values):
            told.clear()
            run(SERVER, client, made, told.append)
            ended = [line for line in told if line.startswith("   redrive ")]
            wanted -= {pattern for pattern in wanted if any(re.search(pattern, line) for line in ended)}
            if not wanted:
                break
    assert not wanted


@pytest.mark.parametrize("requests", range(0, 80, 7))
@pytest.mark.parametrize("how", [KILLED, STANDS], ids=["killed", "stands still"])
def test_a_redrive_that_ends_anywhere_sends_each_dead_letter_back_once(
    failures: Callable[[Plan], set[str]], requests: int, how: float
) -> None:
    """The next one begins where it was killed. Beside one that stands still it is refused, or takes over."""
    for next_one in (redrive(), redrive(how=0.9)):
        assert not failures(letters(redrive(requests, how), "trigger", next_one, redrive(how=0.1)))


def test_a_restored_server_may_give_the_ids_of_returned_entries_again(failures: Callable[[Plan], set[str]]) -> None:
    """Producers' IDs are ahead of the server's clock, so the copies have the IDs that follow the last one each time."""
    made = letters(Step("backup"), redrive(), Step("restore"), redrive(), "trigger")
    options = {**made.setup.options, "failOnDataLoss": "false"}
    ahead = Step("clock", how=0.999)
    assert not failures(replace(made, setup=replace(made.setup, options=options), steps=(ahead, *made.steps)))


def notes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mover, "begin", lambda self: self._run.watch())


def deletes_first(patch: pytest.MonkeyPatch) -> None:
    honest = Mover.move

    def move(self: Mover, planned: PagePlan) -> None:
        if planned.ids:
            self._run.home.execute("XDEL", self._run.stream, *planned.ids)
        honest(self, planned)

    patch.setattr(Mover, "move", move)


def has_no_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedriveLease, "hold", lambda *given: None)


def writes_it_twice(patch: pytest.MonkeyPatch) -> None:
    honest = post._transaction

    def twice(server: Connection, to: str, entries: list[FailedEntry], commands: list[Command]) -> object:
        done = honest(server, to, entries, commands)
        server.execute(*entries[0].dead_letter(to))
        return done

    patch.setattr(post, "_transaction", twice)


def writes_other_bytes(patch: pytest.MonkeyPatch) -> None:
    honest = FailedEntry.dead_letter

    def other(self: FailedEntry, to: str) -> Command:
        return honest(replace(self, fields=[*self.fields[:-1], b"other"]), to)

    patch.setattr(FailedEntry, "dead_letter", other)


KILLS = [letters(redrive(requests, KILLED), redrive()) for requests in range(10, 60)]
STANDING = [letters(redrive(requests, STANDS), redrive()) for requests in range(10, 60)]


@pytest.mark.parametrize(
    ("breaks", "plans", "kinds"),
    [
        (notes_nothing, KILLS, {"twice, a dead letter"}),
        (deletes_first, KILLS, {"lost, a dead letter"}),
        (has_no_lease, STANDING, {"two redrives at once"}),
        (writes_it_twice, [letters()], {"twice, a dead letter"}),
        (writes_other_bytes, [letters()], {"a dead letter with other bytes"}),
    ],
)
def test_a_broken_product_is_found(
    monkeypatch: pytest.MonkeyPatch,
    failures: Callable[[Plan], set[str]],
    breaks: Callable[[pytest.MonkeyPatch], None],
    plans: list[Plan],
    kinds: set[str],
) -> None:
    assert not failures(plans[0])
    breaks(monkeypatch)
    assert any(failures(one) & kinds for one in plans), f"none of {kinds}"
