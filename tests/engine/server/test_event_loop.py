"""What the engine leaves behind is freed by Python's reference counts: the collector looks at new objects only."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from spark_streams.engine.commands import new_engine
from spark_streams.engine.server.event_loop import (
    EngineServer,
    collect_all_objects,
    collect_new_objects,
    skip_survivors,
)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """The socket of an engine in this process."""
    engine = new_engine()
    where = str(tmp_path / "e")
    engine.config.start_with("unixsocket", where)
    engine.config.start_with("port", "0")
    server = EngineServer(engine)
    server.listen()
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield where
    with redis.Redis(unix_socket_path=where) as client:
        client.config_resetstat()  # what a process counts of its commands, others read here
    server.stop_soon()
    thread.join()


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pipeline(client: redis.Redis) -> None:
    with client.pipeline() as commands:
        for number in range(50):
            commands.xadd("s", {"a": number})
        commands.execute()


def connect(client: redis.Redis) -> None:
    with redis.Redis(unix_socket_path=client.get_connection_kwargs()["path"]) as other:
        other.ping()


def block(client: redis.Redis) -> None:
    with redis.Redis(unix_socket_path=client.get_connection_kwargs()["path"]) as other:
        other.xread({"nothing": "$"}, block=1)


def refused(client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError):
        client.execute_command("XADD", "s")  # type: ignore[no-untyped-call]


COMMANDS: dict[str, Callable[[redis.Redis], object]] = {
    "connect": connect,
    "block": block,
    "add": lambda client: client.xadd("s", {"a": 1}, maxlen=100),
    "pipeline": pipeline,
    "read": lambda client: client.xreadgroup("g", "c", {"s": ">"}, count=5),
    "range": lambda client: client.xrange("s", count=5),
    "claim": lambda client: client.xautoclaim("s", "g", "d", 0, count=5),
    "info": lambda client: client.xinfo_stream("s", full=True),
    "delete": lambda client: (client.xadd("t", {"a": 1}), client.delete("t")),
    "refused": refused,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_circle_is_left(path: str, uncollected: None, command: str) -> None:
    with redis.Redis(unix_socket_path=path) as client:
        client.xgroup_create("s", "g", "0", mkstream=True)
        for _ in range(3):  # what is imported and made once
            COMMANDS[command](client)
        gc.collect()
        for _ in range(20):
            COMMANDS[command](client)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        ours = [one for one in gc.garbage if type(one).__module__.startswith("spark_streams")]
        gc.garbage.clear()
    assert ours == []


def test_what_has_survived_one_look_is_looked_at_when_nobody_asks() -> None:
    threshold = gc.get_threshold()
    try:
        collect_new_objects()
        kept: list[list[int]] = [[] for _ in range(5_000)]
        assert gc.get_freeze_count() > 3_000
        circle: list[object] = []
        circle.append(circle)
        gc.freeze()
        del circle
        assert gc.collect() == 0
        collect_all_objects()
        assert len(kept) == 5_000
    finally:
        gc.callbacks.remove(skip_survivors)
        gc.set_threshold(*threshold)
        gc.unfreeze()
