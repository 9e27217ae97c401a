"""The connector of examples/lakeflow, driven as its framework does. The framework's own tests are not installed."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tools.driving import add
from tools.servers.server import Server

FILE = Path(__file__).resolve().parents[3] / "examples" / "lakeflow" / "redis_streams.py"
PACKAGE = "databricks.labs.community_connector.interface.lakeflow_connect"


class LakeflowConnect:
    """The framework's class, as far as the connector uses it."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options


@pytest.fixture
def connect(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that returns a connector of a new run."""
    names = PACKAGE.split(".")
    for depth in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:depth]), ModuleType(names[depth - 1]))
    sys.modules[PACKAGE].LakeflowConnect = LakeflowConnect  # type: ignore[attr-defined]
    found = runpy.run_path(str(FILE))["RedisStreamsLakeflowConnect"]
    return lambda: found({"url": server.url, "streams": "orders*"})


def run(connector: Any, offset: dict[str, Any] | None, **options: str) -> tuple[list[int], dict[str, Any]]:
    """Read until there is no more, as the framework does. Return column n of the records, and the position."""
    found: list[int] = []
    while True:
        records, end = connector.read_table("orders", offset, {"max_records_per_batch": "7", **options})
        found += [int(record["fields"]["n"]) for record in records]
        if end == offset:
            return found, end
        offset = end


def test_runs_read_each_entry_once(server: Server, connect: Any) -> None:
    with server.client(decode_responses=True) as client:
        add(client, 20, "orders")
        add(client, 1, "other")
        assert connect().list_tables() == ["orders"]
        found, offset = run(connect(), None)
        assert found == list(range(20))
        assert offset["read"] == 20
        add(client, 5, "orders", first=20)
        connector = connect()
        more, offset = run(connector, offset)
        add(client, 3, "orders", first=25)
        assert (more, run(connector, offset)[0]) == ([20, 21, 22, 23, 24], [])  # a run ends
        assert run(connect(), offset)[0] == [25, 26, 27]


def test_trimmed_entries_are_named_or_left_out(server: Server, connect: Any) -> None:
    with server.client(decode_responses=True) as client:
        add(client, 20, "orders")
        _, offset = run(connect(), None)
        client.xtrim("orders", maxlen=0)
        assert run(connect(), offset) == ([], offset)  # they were read
        add(client, 10, "orders", first=20)
        client.xtrim("orders", maxlen=4, approximate=False)
        with pytest.raises(ValueError, match="at least 6 entries of stream 'orders'"):
            run(connect(), offset)
        assert run(connect(), offset, fail_on_data_loss="false")[0] == [26, 27, 28, 29]


def test_a_table_that_does_not_exist_is_an_error(connect: Any) -> None:
    with pytest.raises(ValueError, match="table 'ordres' does not exist"):
        connect().get_table_schema("ordres", {})
