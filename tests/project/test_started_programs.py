"""Programs that the product starts import nothing from the working directory."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_streams.base.extras import python_command, python_environment
from spark_streams.connector.deadletter import transform
from spark_streams.connector.spark import installation
from spark_streams.operations.console.changes import Changes
from tools.servers.server import Server

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = ("click", "redis", "json", "hiredis", "spark_streams", "pyarrow", "rich", "sitecustomize")


@pytest.fixture
def hostile_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory. Each of its modules leaves a file if it is imported."""
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep + os.pathsep)
    return tmp_path


def imported(folder: Path) -> str:
    file = folder / "imported"
    return file.read_text() if file.exists() else ""


def test_the_modules_of_this_test_are_imported_by_a_plain_python(hostile_folder: Path) -> None:
    subprocess.run([sys.executable, "-c", "import click"], check=True)
    assert "click" in imported(hostile_folder)


def test_the_engine(hostile_folder: Path) -> None:
    program = (
        "import redis; from spark_streams.engine.launch.local import LocalEngine\n"
        "with LocalEngine() as engine: print(redis.Redis.from_url(engine.url).ping())"
    )
    environment = python_environment(os.environ)
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert (ended.stdout, imported(hostile_folder)) == ("True\n", "")


def test_commands_of_the_console(hostile_folder: Path, engine_server: Server) -> None:
    async def output_of(*arguments: str) -> bytes:
        environment = {**os.environ, "RSTREAM_URL": engine_server.url}
        process = await Changes(environment, print, asyncio.Event().wait)._start(arguments)
        output, _ = await process.communicate()
        return output

    assert isinstance(json.loads(asyncio.run(output_of("streams"))), list)
    assert imported(hostile_folder) == ""


def test_the_python_of_executors(hostile_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rstream doctor` asks it for its modules."""
    monkeypatch.delenv("PYTHONPATH")
    assert installation._run_program([sys.executable, "-c", "import json; print(json.dumps(1))"]) == "1\n"
    assert imported(hostile_folder) == ""


def test_a_module_of_an_installed_package(hostile_folder: Path) -> None:
    """`--transform` looks into the working directory last."""
    program = "from spark_streams.connector.deadletter import transform; print(transform.load('click:command'))"
    ended = subprocess.run(
        python_command("-c", program), env=python_environment(os.environ), capture_output=True, text=True, check=True
    )
    assert "<function command" in ended.stdout
    assert imported(hostile_folder) == ""


def test_a_module_of_the_working_directory(hostile_folder: Path) -> None:
    (hostile_folder / "own_repair.py").write_text("def repair(dead_letter):\n    return None\n")
    path = list(sys.path)
    try:
        assert transform.load("own_repair:repair").__name__ == "repair"
    finally:
        sys.path[:] = path


@pytest.mark.in_turn
def test_no_program_is_started_in_another_way() -> None:
    """Each place in which the package names its own Python as a command takes python_command."""
    started = {"Popen", "run", "call", "check_call", "check_output", "create_subprocess_exec", "execv", "execvp"}
    found = []
    for path in sorted(
        [*ROOT.glob("spark_streams/**/*.py"), *ROOT.glob("jobs/*.py"), *ROOT.glob("examples/flights/*.py")]
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if name in started and "sys.executable" in ast.unparse(node):
                found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    assert found == []
