"""The programs, one for each client: how each is made ready, and run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.legs.java import class_path
from tools.servers.jars import HOME, fetch

HERE = Path(__file__).parent


def _java(name: str) -> Callable[[], list[str]]:
    def ready() -> list[str]:
        folder = HERE / name
        (source,) = folder.glob("*.java")
        return ["java", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, class_path(folder))), source.stem]

    return ready


def _go() -> list[str]:
    folder = _copied("go")
    fetch("go", "mod", "download", cwd=folder)
    subprocess.run(["go", "build", "-o", "streams", "."], cwd=folder, check=True)
    return [str(folder / "streams")]


def _rust() -> list[str]:
    folder = _copied("rust")
    fetch("cargo", "fetch", "--quiet", cwd=folder)
    subprocess.run(["cargo", "build", "--quiet", "--offline"], cwd=folder, check=True)
    return [str(folder / "target" / "debug" / "streams")]


def _node() -> list[str]:
    folder = _copied("node")
    if not (folder / "node_modules").is_dir():
        fetch("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)
    return ["node", str(folder / "streams.mjs")]


def _copied(name: str) -> Path:
    """The folder in `.servers`, where these tools put what they fetch and make."""
    folder = HOME / f"client-{name}"
    shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
    return folder


# The client's name, and what returns the command of its program. It raises NotThereError (tools/servers/jars.py).
PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "jedis": _java("jedis"),
    "lettuce": _java("lettuce"),
    "spring-data-redis": _java("spring"),
    "go-redis": _go,
    "redis-rs": _rust,
    "node-redis": _node,
}


def said(command: list[str], port: int) -> list[str]:
    """Return the lines that a program prints. Raises AssertionError if it fails."""
    ran = subprocess.run([*command, str(port)], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, f"{ran.stdout[-1500:]}\n{ran.stderr[-3000:]}"
    return ran.stdout.splitlines()
