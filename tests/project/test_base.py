"""A Python without Arrow, numpy and Spark, as the package without extras makes it: what works there, and what says
which extra is missing. `scripts/test --extras` runs it in such an environment."""

from __future__ import annotations

import pytest

from tests.project.python_without import COMMANDS, run_without
from tools.servers.server import Server

PACKAGES = ("pyspark", "py4j", "pyarrow", "numpy", "pandas")


def codes(server: Server, *commands: str) -> tuple[dict[str, int], str]:
    """Return the exit code of each command, and the errors."""
    ended = run_without(PACKAGES, COMMANDS, "\n".join(f"{one} --url {server.url}" for one in commands))
    assert "Traceback" not in ended.stderr
    lines = [line.split(" ", 2)[1:] for line in ended.stdout.splitlines() if line.startswith("==")]
    return {line.partition(" --url")[0]: int(code) for code, line in lines}, ended.stderr


@pytest.mark.in_turn
def test_commands_that_look_and_change_groups_need_no_arrow(server: Server) -> None:
    with server.client() as client:
        for n in range(20):
            client.xadd("orders", {"n": n})
        client.xgroup_create("orders", "billing", 0)
        client.xreadgroup("billing", "one", {"orders": ">"}, count=10)
    commands = [
        *("streams", "show orders", "tail orders --last 2", "groups orders", "lag", "add orders n=20"),
        *("pending orders --group billing", "groups seek orders --group billing --to 3 --even-active --yes"),
        *("groups seek orders --group billing --to -5 --even-active --yes", "groups prune orders --idle 1h", "url"),
        "groups claim orders --group billing --from one --to two --even-active --yes",
        "groups create orders --group second --yes",
        "groups delete orders --group second --yes",
    ]
    ended, said = codes(server, *commands)
    assert ended == dict.fromkeys(commands, 0), said


@pytest.mark.in_turn
def test_commands_that_read_columns_name_the_extra(server: Server) -> None:
    with server.client() as client:
        client.xadd("orders", {"n": 1})
    commands = ["dead list", "dead show orders", "copy orders copied"]
    ended, said = codes(server, *commands)
    assert ended == dict.fromkeys(commands, 1)
    for name in ("dead list", "dead show", "copy"):
        assert f"[RSTREAM_UNSUPPORTED] rstream {name} needs numpy, and this Python has none: pip install" in said
    assert said.count("pip install 'spark-streams[cluster]'") == 3


@pytest.mark.in_turn
@pytest.mark.parametrize("module", ["dead_letters", "pytest_plugin", "engine", "cli", "errors"])
def test_modules_for_consumers_without_spark_import_no_arrow(module: str) -> None:
    ended = run_without(PACKAGES, f"import spark_streams.{module}")
    assert ended.returncode == 0, ended.stderr


def test_functions_for_spark_name_the_package_that_is_missing() -> None:
    ended = run_without(PACKAGES[2:], "import spark_streams; spark_streams.register(None)")
    said = ended.stderr.splitlines()[-1]
    assert (
        "spark_streams.register needs pyarrow, and this Python has none: pip install 'spark-streams[cluster]'" in said
    )
