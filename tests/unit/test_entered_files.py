"""The tool that counts which files a trigger and an entry enter."""

from __future__ import annotations

from tests.servers import Server
from tools.entered_files import trace


def test_it_sees_both_sides_and_all_threads(engine_server: Server) -> None:
    with engine_server.client() as client:
        client.flushall()
    trigger, whole = trace(engine_server.url)
    assert "source/microbatch/trigger.py" in trigger
    assert {*trigger, "source/task/read_partition.py", "wire/connection.py"} <= {*whole}
    assert any(name.startswith("sink/") for name in whole)
    assert not any(name.startswith("engine/") for name in whole)
