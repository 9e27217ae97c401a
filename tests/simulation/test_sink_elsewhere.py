"""A plan whose exactly-once sink has a server of its own: what happens to the source's server does not happen to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from tools.servers.server import Server
from tools.simulation.histories import LENIENT, more, plan
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.run import run
from tools.simulation.setup import Plan, Step
from tools.simulation.sinks import OUT
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


def test_a_batch_that_has_lost_entries_stops_at_such_a_sink() -> None:
    """Documented: the error names the remedy, and the operator finds it on the sink's server."""
    steps = ("trigger", Step("trim", amount=0.99), Step("lose_commits", amount=0.99), "trigger", "trigger")
    server, lines = ProcessServer(), list[str]()
    with product(server), server.client(decode_responses=True) as client:
        assert run(server, client, elsewhere(*steps, **LENIENT), lines.append).failures == []
    assert "[RSTREAM_LEDGER] batch 0 of query q0 was written to stream 'out' before" in "\n".join(lines)


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
