"""A plan whose exactly-once sink has a server of its own: what happens to the source's server does not happen to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import redis

from tools.servers.server import Server
from tools.simulation.histories import LENIENT, POISON, more, plan
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.run import run
from tools.simulation.setup import Plan, Step
from tools.simulation.sinks import OUT
from tools.simulation.told import at
from tools.simulation.world import World

LOSES_ITS_COMMIT = ("trigger", more(3), "trigger", Step("lose_commits", amount=0.01), "trigger")


def elsewhere(*steps: Step | str, **options: str) -> Plan:
    made = plan(*steps, sink="once", **options)
    return replace(made, setup=replace(made.setup, sink_elsewhere=True))


def seen_by(made: Plan) -> tuple[list[str], list[int]]:
    """Kinds of failures, and how many rows each of the two servers has at the step `look`."""
    server, found = ProcessServer(), list[int]()

    def look(world: World, step: Step) -> None:
        found.extend([world.client.xlen(OUT), world.sink_client.xlen(OUT)])

    with product(server), server.client(decode_responses=True) as client:
        failures = run(server, client, made, beside={"look": look}).failures
    return [failure.kind for failure in failures], found


def test_rows_are_on_the_sinks_own_server() -> None:
    assert seen_by(elsewhere("trigger", more(3), "trigger", "look")) == ([], [0, 8])


def test_rows_survive_the_sources_server() -> None:
    """FLUSHALL of the source's server loses no row, and nothing of it counts as lost by the sink."""
    assert seen_by(elsewhere("trigger", "flush", "look", more(3), "trigger", **LENIENT)) == ([], [0, 5])


def test_a_batch_that_runs_again_is_written_once() -> None:
    assert seen_by(elsewhere(*LOSES_ITS_COMMIT, "look")) == ([], [0, 8])


AFTER_TWO_ROWS = at("EXEC", "kill", 7)
STOPS: Mapping[str, tuple[Plan, str]] = {
    "has lost entries": (
        elsewhere(
            "trigger", Step("trim", amount=0.99), Step("lose_commits", amount=0.99), "trigger", "trigger", **LENIENT
        ),
        "batch 0 of query q0 was written to stream 'out' before",
    ),
    "was cut": (
        elsewhere(AFTER_TWO_ROWS, "trigger", AFTER_TWO_ROWS, "trigger", "trigger", "trigger", **POISON),
        "an earlier run of batch 0 of query q0 wrote 2 rows to stream 'out' that this run does not have",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", STOPS)
def test_a_batch_that_was_cut_or_has_lost_entries_stops_at_such_a_sink(why: str) -> None:
    """Documented: the error names the remedy, and the operator finds it on the sink's server."""
    made, said = STOPS[why]
    server, lines = ProcessServer(), list[str]()
    with product(server), server.client(decode_responses=True) as client:
        assert run(server, client, made, lines.append).failures == []
    [error, *_] = [line for line in lines if "[RSTREAM_LEDGER]" in line]
    assert said in error
    assert "HSET rstream:told:q0 'lossy 0:any' 1 on the sink's server" in error


def test_the_digest_has_the_commands_of_both_servers() -> None:
    """With another chunk, only the sink is asked for something else."""
    server = ProcessServer()

    def digest(chunk: int) -> int:
        made = elsewhere("trigger", more(3), "trigger")
        with product(server), server.client(decode_responses=True) as client:
            return run(server, client, replace(made, setup=replace(made.setup, chunk=chunk))).digest

    assert digest(1) == digest(1) != digest(7)


def test_only_servers_in_the_process_have_a_second_one(server: Server, client: redis.Redis) -> None:
    """Others are refused, instead of a sink on the same server."""
    with product(server), pytest.raises(ValueError, match="leave out --server"):
        run(server, client, elsewhere("trigger"))
