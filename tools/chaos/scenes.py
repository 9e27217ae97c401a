"""All scenes by their names: what strikes which queries, on which servers.

A scene is played on a stage (tools.chaos.stage). Its function runs the queries, strikes them at their moments, and says
what must hold at the end beside verify's checker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tools.chaos.drivers import KILLS, STOPS, killed, stopped
from tools.chaos.random_kills import retried, sharded
from tools.chaos.servers import (
    CLUSTER_FAULTS,
    SENTINEL_FAULTS,
    many_restarts,
    replaced,
    restarted,
    server_killed,
    server_paused,
    struck_server,
)
from tools.chaos.stage import Stage
from tools.chaos.tasks import EXECUTOR_FAILURES, FAILURES, available_now, failed, failed_on_executors, once, zombie

SINGLE = ("engine", "redis")


@dataclass(frozen=True)
class Scene:
    """A scene of the table."""

    name: str
    play: Callable[[Stage], object]
    kinds: Sequence[str] = SINGLE  # of servers
    sink: str = ""  # of its queries; "": any


def _scenes() -> Iterator[Scene]:
    for point in KILLS:
        yield Scene(f"driver killed: {point}", partial(killed, points=[point]))
    for point in STOPS:
        yield Scene(f"driver stopped: {point}", partial(stopped, points=[point]))
    for fault in EXECUTOR_FAILURES:
        yield Scene(f"on executors: {fault}", partial(failed_on_executors, faults=[fault]))
    yield Scene("ends with once", once)
    yield Scene("ends with availableNow", available_now)
    yield Scene("server killed", partial(struck_server, strike=server_killed))
    yield Scene("server paused", partial(struck_server, strike=server_paused))
    yield Scene("server restarted", restarted)
    yield Scene("sink away, many restarts", many_restarts, sink="stream")
    yield Scene("retries, driver killed", retried)
    yield Scene("zombie task", zombie, sink="stream")
    yield Scene("zombie of an old run", partial(zombie, of_an_old_run=True), sink="stream")
    for fault in FAILURES:
        yield Scene(fault, partial(failed, fault=fault))
    for name, strike in CLUSTER_FAULTS.items():
        yield Scene(f"cluster: {name}", partial(replaced, strike=strike), ["cluster"])
    for name, strike in SENTINEL_FAULTS.items():
        yield Scene(f"sentinel: {name}", partial(replaced, strike=strike), ["sentinel"])
    yield Scene("shards: writers and readers killed", sharded, [*SINGLE, "cluster"], "stream")


SCENES = {scene.name: scene for scene in _scenes()}
