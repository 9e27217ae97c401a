"""Start of a job. A package that this Python lacks is reported in one line, before any module imports it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from spark_streams.base.extras import command_that_installs
from spark_streams.connector.spark.startup.sitecustomize import remove_archives_of_pyspark

# The extra that brings pyspark brings numpy and pyarrow, too.
_NEEDED = ("click", "redis", "rich", "pyspark", "numpy", "pyarrow")


def main(name: str, settings_passed: bool = False) -> None:
    """Run a job from the command line in sys.argv. Exit with the codes of command.py.

    settings_passed: spark-submit has received the settings of [spark].
    """
    find_packages()
    from spark_streams.jobs.command import program

    program(name).main(settings_passed)


def find_packages() -> None:
    """Let this Python find pyspark. Exit with one line if it lacks a package that jobs need."""
    remove_archives_of_pyspark()
    if name := missing_package():
        sys.exit(
            f"{Path(sys.argv[0]).name}: {sys.executable} lacks {name}: activate the environment that "
            "spark-streams is installed in (. .venv/bin/activate), or set PYSPARK_PYTHON to its python; "
            f"or install it there: {command_that_installs(name)}"
        )


def missing_package() -> str | None:
    """Return a package that jobs need and this Python lacks. Its extra brings what else is missing."""
    home = os.environ.get("SPARK_HOME")
    if home and find_spec("pyspark") is None:  # its own pyspark
        sys.path += [str(file) for file in sorted(Path(home, "python", "lib").glob("py*.zip"))]
    return next((name for name in _NEEDED if find_spec(name) is None), None)
