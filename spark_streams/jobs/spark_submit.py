"""A job by spark-submit: this process becomes spark-submit, so its signals and its exit code are the job's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from spark_streams.jobs.settings.spark_settings import SparkSettings, prepare

_ENTRY = Path(__file__).parent / "__main__.py"


def program() -> str | None:
    """spark-submit: that of SPARK_HOME, else the one that pyspark brings, else the first one of PATH."""
    if os.environ.get("SPARK_HOME"):
        return shutil.which("spark-submit", path=str(Path(os.environ["SPARK_HOME"]) / "bin"))
    pyspark = find_spec("pyspark")
    brought = None if pyspark is None or pyspark.origin is None else Path(pyspark.origin).parent / "bin"
    return shutil.which("spark-submit", path=str(brought)) or shutil.which("spark-submit")


def become(spark_submit: str, settings: SparkSettings, words: Sequence[str]) -> NoReturn:
    """Run a job with these words: its name and its arguments."""
    prepare(settings)
    home = Path(spark_submit).parent.parent
    if (home / "jars").is_dir():  # else it would start a Python that looks for it
        os.environ.setdefault("SPARK_HOME", str(home))
    confs = [word for key, value in settings.confs.items() for word in ("--conf", f"{key}={value}")]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(spark_submit, [spark_submit, *confs, str(_ENTRY), *words])
