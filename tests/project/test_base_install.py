"""The package without extras: each command of rstream works, or says in one line which extra it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from spark_streams.cli import main
from tests.project.python_without import COMMANDS, run_without
from tools.servers.server import Server

# What the extras bring, as far as a command could use it.
PACKAGES = (
    *("pyspark", "py4j", "numpy", "pyarrow", "pandas", "prometheus_client", "jinja2", "starlette", "uvicorn", "h11"),
    *("fastavro", "jsonschema", "referencing", "re2", "deltalake", "pyiceberg", "openlineage", "xxhash"),
)
# Command lines by the extra that they need.
LINES = {
    "": [
        *(
            "add orders customer=ann",
            "streams",
            "shards",
            "show orders",
            "tail orders",
            "lag",
            "lag orders --group etl",
        ),
        *(
            "pending orders",
            "wait orders --group etl --for 1s",
            "trim --acked",
            "url",
            "help jobs",
            "doctor",
            "top --once",
        ),
        *("groups list orders", "groups create orders* --group etl", "groups create orders* --group etl --yes"),
        *(
            "groups seek orders* --group etl --to earliest",
            "groups delete orders --group etl",
            "groups prune --idle 1h",
        ),
        *("groups ack --help", "groups claim --help", "groups release --help", "replay orders --group etl --from 1h"),
        *("init load -o {0}/load.toml", "init etl -o {0}/etl.toml", "init alerts -o {0}/alerts.yml"),
        "serve --help",
    ],
    "cluster": [
        *(
            "copy orders other",
            "export orders {0}/o.jsonl",
            "import {0}/o.jsonl other",
            "init etl --stream orders -o {0}/x",
        ),
        "where orders 1-1",
        *("dead list", "dead show orders:dead", "dead export orders:dead", "dead purge orders:dead --yes"),
        *("dead redrive orders:dead", "exporter --once"),
    ],
    "spark": [
        "run etl --config {0}/etl.toml --check",
        "run etl --config {0}/etl.toml --submit",
        "run load",
        "verify --engine",
    ],
    "console": ["console --port 0"],
}


def leaves(group: click.Group, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield from leaves(command, f"{prefix}{name} ") if isinstance(command, click.Group) else [f"{prefix}{name}"]


@pytest.mark.in_turn
def test_each_command_runs_or_names_its_extra(engine_server: Server, tmp_path: Path) -> None:
    with engine_server.client() as client:
        client.flushall()
        client.xadd("orders", {"customer": "ann"})
        client.xadd("orders2", {"customer": "bob"})
    lines = [line.format(tmp_path) for lines in LINES.values() for line in lines]
    start = f"import os, sys; os.environ['RSTREAM_URL'] = {engine_server.url!r}\n"
    start += "sys.stdout = sys.stderr = open(1, 'w', buffering=1, closefd=False)\n"
    ended = run_without(PACKAGES, start + COMMANDS, "\n".join(lines))
    said, code = {}, {}
    before: list[str] = []
    for part in ended.stdout.splitlines():
        if part.startswith("== "):
            _, ending, line = part.split(" ", 2)
            said[line], code[line], before = "\n".join(before), ending, []
        else:
            before.append(part)
    assert list(said) == lines, (before, ended.stderr)
    for extra, group in LINES.items():
        for line in (one.format(tmp_path) for one in group):
            needed = [name for name in LINES if name and f"pip install 'spark-streams[{name}]'" in said[line]]
            assert needed == [extra] * bool(extra), f"{line}: {said[line]}"
            if extra:
                assert (code[line], said[line].count("\n")) == ("1", 0), said[line]
            else:
                assert code[line] in ("0", "1", "3"), f"{line}: {said[line]}"  # not: wrong usage
    assert {name for name in leaves(main) if any(line.startswith(name) for line in lines)} == {*leaves(main)}


@pytest.mark.parametrize("variable", ["", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"])
def test_register_without_java_says_it_in_one_line(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Spark would start a JVM: not by Spark Connect, and not under spark-submit."""
    from spark_streams.connector.errors import UnsupportedError
    from spark_streams.connector.spark.installation import check_for_java

    for name in ("JAVA_HOME", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    if variable:
        monkeypatch.setenv(variable, "1")
        check_for_java("spark_streams.register")
        return
    with pytest.raises(UnsupportedError, match="register starts Spark, and there is no Java: install a JDK 17") as told:
        check_for_java("spark_streams.register")
    assert "\n" not in str(told.value)
