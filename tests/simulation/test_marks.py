"""The judge of commit marks: it sees a mark that is behind its checkpoint, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.settled import Settled
from spark_streams.connector.source.trigger import acknowledge
from tools.servers.server import Server
from tools.simulation.at_peace import check_invariant
from tools.simulation.histories import more, plan
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import Outcome, run
from tools.simulation.setup import NEVER_AHEAD, Plan, Setup, Step
from tools.simulation.world import CONSUMER, GROUP, World

LATER = Mark(StreamId(0, 0), 1_000, "1234abcd-1234abcd")
THREE_BATCHES = plan("trigger", more(3), "trigger", more(3), "trigger", "trigger")
Power = Callable[[World, Step], None]


def kinds(server: Server, client: redis.Redis, given: Plan, **beside: Power) -> list[str]:
    with product(server):
        return [failure.kind for failure in run(server, client, given, beside=beside).failures]


def test_the_marks_of_a_whole_product_are_as_new_as_its_checkpoint(server: Server, client: redis.Redis) -> None:
    assert kinds(server, client, THREE_BATCHES) == []


@pytest.mark.parametrize(
    ("value", "how"),
    [("", "missing"), ("0-0 1.1234abcd-1234abcd", "older"), ("0-0 3.1234abcd-1234abcd", "of another batch")],
)
def test_a_mark_that_is_behind_is_found(server: Server, client: redis.Redis, value: str, how: str) -> None:
    """It fails a run in which nothing else does."""

    def look(world: World, step: Step) -> None:
        key = committed_key("s:0", GROUP, CONSUMER)
        before = world.raw.get(key)
        assert before is not None
        world.raw.set(key, value) if value else world.raw.delete(key)
        check_invariant(world)
        world.raw.set(key, before)

    found = kinds(server, client, replace(THREE_BATCHES, steps=(*THREE_BATCHES.steps, Step("look"))), look=look)
    assert found == [f"mark behind | {how}, listed | after nothing | strict plain"]


@pytest.mark.parametrize("value", ["0-0 4.1234abcd-1234abcd", "0-0 0.seek"])
def test_a_later_mark_and_that_of_a_seek_are_not_behind(server: Server, client: redis.Redis, value: str) -> None:
    """Others have written them, and the query will say what it makes of them."""

    def set_mark(world: World, step: Step) -> None:
        world.raw.set(committed_key("s:0", GROUP, CONSUMER), value)
        world.query.die()

    changed = replace(THREE_BATCHES, steps=(*THREE_BATCHES.steps, Step("set_mark")))
    assert not any(kind.startswith("mark behind") for kind in kinds(server, client, changed, set_mark=set_mark))


def writes_no_marks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Settled, "marks_to_set", lambda self: {})


def test_a_product_that_writes_no_marks_is_found_unless_the_judge_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ProcessServer()
    client = server.client(decode_responses=True)
    writes_no_marks(monkeypatch)
    unjudged = replace(THREE_BATCHES, setup=replace(THREE_BATCHES.setup, judges_marks=False))
    assert [kind.split(",")[0] for kind in kinds(server, client, THREE_BATCHES)] == ["mark behind | older"]
    assert kinds(server, client, unjudged) == []


def test_the_judge_leaves_no_trace() -> None:
    """With it and without it, the commands and replies of a plan are the same."""
    server = ProcessServer()

    def outcome(*additions: str) -> Outcome:
        with product(server), server.client(decode_responses=True) as client:
            return run(server, client, make(3, *additions))

    assert outcome().digest == outcome("unmarked").digest != 0


@pytest.mark.parametrize("is_honest", [True, False])
def test_a_stream_that_is_not_in_the_list_has_a_mark_too(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_honest: bool
) -> None:
    """The judge asks for all streams of the checkpoint, and the product writes each mark that is behind."""
    if not is_honest:
        honest = acknowledge.fetch_marks
        monkeypatch.setattr(
            acknowledge,
            "fetch_marks",
            lambda client, streams: dict.fromkeys(honest(client, streams), LATER),
        )
    options = {"streams": "s:0,s:1", "startingOffsets": "earliest"}
    steps = (Step("trigger"), Step("add", choice=0.9, amount=0.3), Step("trigger"), Step("trigger"),
             Step("leave_out", choice=0.9), Step("forget"), Step("trigger"))  # fmt: skip

    def forget(world: World, step: Step) -> None:
        world.raw.set(committed_key("s:1", GROUP, CONSUMER), "0-0 0.1234abcd-first")

    given = Plan(Setup(7, 2, "recorder", NEVER_AHEAD, 0, options, before=2), steps)
    found = kinds(server, client, given, forget=forget)
    assert found == ([] if is_honest else ["mark behind | older, left out | after nothing | strict plain"])
