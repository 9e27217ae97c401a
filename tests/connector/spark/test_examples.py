"""The programs of examples/, as a newcomer runs them: as they are, and pasted into a pyspark shell."""

from __future__ import annotations

import code
import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tools.servers.server import Server

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# What each leaves behind: streams and how many entries are in them.
LEFT = {
    "large_orders.py": {"example:orders": 4, "example:large-orders": 2},
    "dead_letters.py": {"example:payments": 4, "example:payments:dead": 2, "example:paid": 2},
    "hourly.py": {"example:readings": 240, "example:hourly": 6},
}
SHOWN = {
    "large_orders.py": ["bob", "dee", "1200.00"],
    "dead_letters.py": ["a lot", "decode", "pays nothing"],
    "hourly.py": ["room-0", "room-1", "02:00:00"],
}


def skip_where_the_last_windows_wait(name: str) -> None:
    if name == "hourly.py" and not HAS_READ_LIMITS:
        pytest.skip("before Spark 4.2 the last windows come with the next batch (docs/reference/compatibility.md)")


def test_each_program_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - {"__init__.py"} == set(LEFT)


def paste_into_a_shell(path: Path, spark: SparkSession) -> None:
    """Enter the program line by line, as a pyspark shell gets it."""
    shell = code.InteractiveConsole({"spark": spark, "sc": spark.sparkContext})
    waits = False
    for line in path.read_text(encoding="utf-8").splitlines():
        waits = shell.push(line)
    assert not waits, "the shell waits for more"


@pytest.mark.parametrize("name", LEFT)
def test_a_program_runs_and_runs_again_if_it_is_pasted_into_a_shell(
    spark: SparkSession, server: Server, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second run has another checkpoint: it continues at the group's position, and reads its own entries."""
    skip_where_the_last_windows_wait(name)
    monkeypatch.setenv("RSTREAM_URL", server.url)
    for times in (1, 2):
        if times == 1:
            runpy.run_path(str(EXAMPLES / name))
        else:
            paste_into_a_shell(EXAMPLES / name, spark)
        shown = capsys.readouterr()
        assert times == 1 or "Error" not in shown.err
        assert [word for word in SHOWN[name] if word not in shown.out] == []
        with server.client() as client:
            assert {stream: client.xlen(stream) for stream in LEFT[name]} == {
                stream: times * count for stream, count in LEFT[name].items()
            }
            for stream in LEFT[name]:
                assert all(group["pending"] == 0 for group in client.xinfo_groups(stream))
