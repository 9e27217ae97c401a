"""A Spark that starts in half the time, with the same classes and the same results.

Java reads and checks thousands of Spark's classes whenever a Spark begins; with a class archive (Java's AppCDS) it maps
them as they were after a first run. And Spark's Python processes compile PySpark anew each (compiled_zips.py). Both are
mended once for an installation, by `rstream quicken`, and found again by whoever starts a Spark here: the jobs do so.
An archive that does not fit any more, of another Java or other jars, is passed over by Java itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path

from spark_streams.errors import UnsupportedError

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"  # Spark gives them to the JVM of spark-submit, which is the driver's
# Java would say on each start why an archive does not fit.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_SECONDS = 300.0  # for the short life of a Spark


def spark_home() -> Path:
    """Of the Spark that is started here. Raises UnsupportedError where there is none."""
    named = os.environ.get("SPARK_HOME")
    if named:
        return Path(named)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UnsupportedError("this Python has no pyspark: pip install 'spark-streams[spark]', or set SPARK_HOME")
    return Path(spec.origin).parent


def class_archive() -> Path | None:
    """Where the archive for this Spark and this Java is, or would be; None where one of them is missing."""
    home, java = os.environ.get("JAVA_HOME"), shutil.which("java")
    java = str(Path(home, "bin", "java")) if home else java
    try:
        jars = spark_home() / "jars"
    except UnsupportedError:
        return None
    if java is None or not jars.is_dir():
        return None
    named = f"{Path(java).resolve()} {jars.resolve()} {jars.stat().st_mtime_ns}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rstream")
    return folder / f"spark-{hashlib.sha256(named.encode()).hexdigest()[:16]}.jsa"


def use_class_archive(environment: MutableMapping[str, str]) -> bool:
    """Whether a Spark that is started with this environment has it, by spark-submit with all that it is to know on its
    command line: a folder with settings is not looked into. Options that somebody has given stay."""
    given = environment.get(SUBMIT_OPTIONS, "")
    archive = class_archive()
    if "SharedArchiveFile" in given or archive is None or not archive.exists():
        return False
    environment[SUBMIT_OPTIONS] = f"{given} {options_for(archive)}".strip()
    environment["RSTREAM_CONFS_GIVEN"] = "1"  # jobs/conf/spark-env.sh
    return True


def options_for(archive: Path) -> str:
    """What SPARK_SUBMIT_OPTS then holds."""
    return f"-XX:SharedArchiveFile={archive} {_QUIET}"


def make_class_archive(archive: Path) -> None:
    """By the short life of a Spark (warm_up.py): half a minute, and 180 MB. Raises UnsupportedError."""
    if " " in str(archive):
        raise UnsupportedError(
            f"{archive} has a blank in its path, which Spark's scripts do not take: set XDG_CACHE_HOME"
        )
    archive.parent.mkdir(parents=True, exist_ok=True)
    made = archive.with_suffix(f".{os.getpid()}")
    given = os.environ.get(SUBMIT_OPTIONS, "")
    environment = {**os.environ, SUBMIT_OPTIONS: f"{given} -XX:ArchiveClassesAtExit={made} {_QUIET}".strip()}
    command = [sys.executable, "-m", "spark_streams.spark.warm_up"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode or not made.exists():
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise UnsupportedError(f"a Spark that was to show its classes ended with {done.returncode}: {said[:500]}")
        made.replace(archive)
    except subprocess.TimeoutExpired:
        raise UnsupportedError(f"a Spark that was to show its classes took more than {_SECONDS:.0f} s") from None
    finally:
        made.unlink(missing_ok=True)
