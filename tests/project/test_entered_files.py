"""The tool that counts which files a trigger and an entry enter."""

from __future__ import annotations

from tools.entered_files import trace
from tools.servers.server import Server


def test_it_sees_both_sides_and_all_threads(engine_server: Server) -> None:
    with engine_server.client() as client:
        client.flushall()
    trigger, whole = trace(engine_server.url)
    assert "source/microbatch/trigger.py" in trigger
    assert {*trigger, "source/task/read_partition.py", "wire/connection/connection.py"} <= {*whole}
    assert "sink/send/exactly_once.py" in whole
    assert not any(name.startswith("engine/") for name in whole)


def test_a_healthy_trigger_enters_no_file_about_a_situation_that_is_not_present(engine_server: Server) -> None:
    with engine_server.client() as client:
        client.flushall()
    trigger, _ = trace(engine_server.url)
    rare = ("source/recovery/", "deadletter/", "sink/", "source/batch/")
    assert not [name for name in trigger if name.startswith(rare)]
    assert len([name for name in trigger if name.startswith("source/")]) <= 23
