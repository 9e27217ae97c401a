"""A job by spark-submit: this process becomes spark-submit, so its signals and its exit code are the job's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from spark_streams.jobs.spark_settings import SparkSettings, prepare

_ENTRY = Path(__file__).parent / "__main__.py"


def program() -> str | None:
    """spark-submit: that of SPARK_HOME, else the one beside this Python, else the first one of PATH."""
    home = os.environ.get("SPARK_HOME")
    places = [Path(home) / "bin"] if home else [Path(sys.executable).parent, *map(Path, os.get_exec_path())]
    return next((found for place in places if (found := shutil.which("spark-submit", path=str(place)))), None)


def become(spark_submit: str, settings: SparkSettings, words: Sequence[str]) -> NoReturn:
    """Run a job with these words: its name and its arguments."""
    prepare(settings)
    confs = [word for key, value in settings.confs.items() for word in ("--conf", f"{key}={value}")]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(spark_submit, [spark_submit, *confs, str(_ENTRY), *words])
