"""What Spark waits for: the processes that it starts for one question each import what they need for that one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("numpy", "pandas", "pyarrow", "redis", "hiredis", "rich", "jinja2", "click")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("what", "allowed"),
    [
        ("pyspark_rstream", set()),  # Spark looks for data sources
        ("spark_streams.connector.datasource", set()),  # and makes one
        ("spark_streams.connector.source.stream_reader", {"numpy", "pyarrow", "redis", "hiredis"}),
        ("spark_streams.connector.source.batch_reader", {"numpy", "pyarrow", "redis", "hiredis"}),
        ("spark_streams.connector.sink.writers", {"numpy", "pyarrow", "redis", "hiredis"}),
    ],
)
def test_a_process_of_spark_imports_no_more_than_it_needs(what: str, allowed: set[str]) -> None:
    code = (  # what Spark's own worker has imported is there already
        f"import sys, pyspark.worker; before = set(sys.modules); import {what}\n"
        f"print(*[name for name in {HEAVY} if name in set(sys.modules) - before])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(said.stdout.split()) <= allowed


def test_the_engine_starts_without_what_only_other_programs_need() -> None:
    """They take a sixth of its start: dataclasses imports inspect, which imports ast, dis and tokenize."""
    others = (*HEAVY[:4], "rich", "click", "dataclasses", "inspect", "ast", "hashlib", "difflib", "asyncio")
    code = f"import sys, spark_streams.engine.__main__\nprint(*[name for name in {others} if name in sys.modules])"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # files of `site` may import anything
    said = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=path)
    assert said.stdout.split() == []


@pytest.mark.in_turn
def test_arrow_does_not_look_for_pandas_when_ours_is_imported() -> None:
    """It does when it makes an array or a scalar of a Python value for the first time, and that takes a third of a
    second where pandas is installed."""
    code = (
        "import sys, importlib.abc\n"
        "class Watch(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        assert name != 'pandas', 'pandas was looked for'\n"
        "import pyspark.worker\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import spark_streams.connector.source.stream_reader, spark_streams.connector.source.batch_reader\n"
        "import spark_streams.connector.sink.writers, spark_streams.connector.sink.writers\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
