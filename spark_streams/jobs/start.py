"""Where a job begins: a Python that lacks what jobs need is told in one line, before anything imports it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_NEEDED = ("click", "numpy", "pyarrow", "pyspark", "redis", "rich")


def main(name: str, spark_is_told: bool = False) -> None:
    """Run a job from the command line, which is sys.argv; leaves with the codes that command.py tells.

    spark_is_told: whoever called spark-submit has given it what the configuration has in [spark].
    """
    leave_if_lacking()
    from spark_streams.jobs.command import main as run

    run(name, spark_is_told)


def leave_if_lacking() -> None:
    """Ends the process with one line where this Python cannot run a job."""
    _take_that_of_spark_home()
    for name in _NEEDED:
        if find_spec(name) is None:
            what = "'spark-streams[spark]' (or set SPARK_HOME)" if name == "pyspark" else name
            sys.exit(
                f"{Path(sys.argv[0]).name}: {sys.executable} lacks {name}: activate the environment that "
                "spark-streams is installed in (. .venv/bin/activate), or set PYSPARK_PYTHON to its python; "
                f"or install it there: pip install {what}"
            )


def _take_that_of_spark_home() -> None:
    """Where this Python has no pyspark, the one of the Spark that SPARK_HOME names."""
    home = os.environ.get("SPARK_HOME")
    if home and find_spec("pyspark") is None:
        sys.path += [str(file) for file in sorted(Path(home, "python", "lib").glob("py*.zip"))]
