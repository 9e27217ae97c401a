"""Run a job by spark-submit. It replaces this process, so that signals and exit code are the job's."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from spark_streams.base.printable import printable
from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.properties_file import write_properties
from spark_streams.jobs.settings.spark_settings import SparkSettings, prepare

_ENTRY = Path(__file__).parent / "__main__.py"


def find_spark_submit() -> str | None:
    """Return the path of spark-submit: that of SPARK_HOME, else of pyspark, else the first one of PATH."""
    if os.environ.get("SPARK_HOME"):
        return shutil.which("spark-submit", path=str(Path(os.environ["SPARK_HOME"]) / "bin"))
    pyspark = find_spec("pyspark")
    folder = None if pyspark is None or pyspark.origin is None else Path(pyspark.origin).parent / "bin"
    return shutil.which("spark-submit", path=str(folder)) or shutil.which("spark-submit")


def exec_spark_submit(spark_submit: str, settings: SparkSettings, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by spark-submit. arguments: the job's name and its own arguments."""
    prepare(settings)
    home = Path(spark_submit).parent.parent
    if (home / "jars").is_dir():  # without SPARK_HOME, spark-submit starts a Python to find it
        os.environ.setdefault("SPARK_HOME", str(home))
    file = write_properties(settings.confs)
    sys.stdout.flush()
    sys.stderr.flush()
    words = [*file.arguments, str(_ENTRY), *arguments]
    try:
        os.execv(spark_submit, [spark_submit, *words])
    except OSError as error:
        os.close(file.descriptor)
        longest = max(words, key=len)
        too_long = (
            f"; its longest argument has {len(longest):,} characters: {printable(longest[:60])}… Put long values into "
            "the job's TOML file"
            if error.errno == errno.E2BIG
            else ""
        )
        raise ConfigError(f"{spark_submit} cannot be started: {error.strerror}{too_long}") from error
