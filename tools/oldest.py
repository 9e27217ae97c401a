"""The oldest version that pyproject.toml declares of each package, as pip takes it: `python -m tools.oldest`.

`--installed` says which ones this Python has, and fails where they are others.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from spark_streams.spark.installation import numbers

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
_FLOOR = re.compile(r"([A-Za-z0-9-]+)>=([0-9.]+)")


def floors() -> dict[str, str]:
    """By name: what the package needs, and the Spark of the extra."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["spark"]
    return {found[1]: found[2] for found in map(_FLOOR.match, declared) if found}


def others() -> list[str]:
    """Of which this Python has another one."""
    found = []
    for name, version in floors().items():
        have = importlib.metadata.version(name)
        if numbers(have)[: len(numbers(version))] != numbers(version):
            found.append(f"{name} is {have}, not {version}")
    return found


def main(words: list[str]) -> int:
    """Exit code."""
    if "--installed" not in words:
        print(*[f"{name}=={version}" for name, version in floors().items()])
        return 0
    print("==", *[f"{name} {importlib.metadata.version(name)}" for name in floors()], sep="  ", flush=True)
    print(*others(), sep="\n", file=sys.stderr)
    return 1 if others() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
