"""Print the oldest version that pyproject.toml declares of each package, in pip's format: `python -m tools.oldest`.

`--installed` prints the versions of this Python, and fails if they differ.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from spark_streams.connector.spark.installation import numbers

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
EXTRAS = ("cluster", "spark", "console", "schemas")  # an extra that another one contains is named, too
_FLOOR = re.compile(r"([A-Za-z0-9-]+)>=([0-9.]+)")


def floors() -> dict[str, str]:
    """Return the oldest versions of the required packages and of these extras, by name."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]
    return {match[1]: match[2] for match in map(_FLOOR.match, declared) if match}


def differences() -> list[str]:
    """Return a line for each package of which this Python has another version."""
    lines = []
    for name, version in floors().items():
        installed = importlib.metadata.version(name)
        if numbers(installed)[: len(numbers(version))] != numbers(version):
            lines.append(f"{name} is {installed}, not {version}")
    return lines


def main(words: list[str]) -> int:
    """Print the versions. Return 1 if installed versions differ."""
    if "--installed" not in words:
        print(*[f"{name}=={version}" for name, version in floors().items()])
        return 0
    print("==", *[f"{name} {importlib.metadata.version(name)}" for name in floors()], sep="  ", flush=True)
    print(*differences(), sep="\n", file=sys.stderr)
    return 1 if differences() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
