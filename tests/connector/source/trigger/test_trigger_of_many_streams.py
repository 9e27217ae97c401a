"""The work of a trigger grows with the number of streams, and no faster."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import redis

from tools.driving import ALL, NEVER_AHEAD, reader, stop_all
from tools.servers.server import Server


def instructions_of_a_trigger(server: Server, client: redis.Redis, streams: list[str]) -> int:
    """Return how many instructions of Python a trigger executes that finds an entry in each stream."""

    def add_one_each() -> None:
        pipeline = client.pipeline(transaction=False)
        for stream in streams:
            pipeline.xadd(stream, {"n": 1})
        pipeline.execute()

    counted = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes = True
        counted += event == "opcode"
        return count

    add_one_each()
    one = reader(server, streams=",".join(streams), limits=NEVER_AHEAD)
    end = one.latestOffset(one.initialOffset(), ALL)
    add_one_each()
    end = one.latestOffset(end, ALL)  # from here on, groups are as the run has left them
    add_one_each()
    before = sys.gettrace()
    sys.settrace(count)
    try:
        after = one.latestOffset(end, ALL)
    finally:
        sys.settrace(before)
    assert all(after["streams"][stream] != end["streams"][stream] for stream in streams)
    stop_all()
    return counted


@pytest.mark.in_turn
def test_four_times_as_many_streams_are_four_times_the_work(server: Server, client: redis.Redis) -> None:
    if sys.gettrace() is not None:
        # The instructions are counted by the trace function, of which a thread has one: a debugger or coverage uses it.
        pytest.skip("another tool traces this process")
    few = instructions_of_a_trigger(server, client, [f"few{n}" for n in range(100)])
    many = instructions_of_a_trigger(server, client, [f"many{n}" for n in range(400)])
    assert few > 100_000
    assert many < 4.2 * few
