"""What a job's Spark is told where no spark-submit has told it: the defaults of conf/, and [spark] on top of them.

A folder of Spark's own settings (SPARK_CONF_DIR, or conf/spark-defaults.conf below SPARK_HOME) is somebody's choice:
then the defaults of conf/ are left out.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spark_streams.errors import ConfigError
from spark_streams.jobs.settings.config import FREE, Config, value_at

# What [spark] holds: `master`, `submit`, and any key of Spark's, `spark.…`.
SHAPE = FREE
CONF = Path(__file__).parents[1] / "conf"
_LOG4J = "-Dlog4j2.configurationFile="
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_OWN = ("master", "submit")


class SparkSettings(NamedTuple):
    """submit: the job is to run by spark-submit; confs: Spark's own keys, `spark.master` among them."""

    submit: bool
    confs: dict[str, str]

    @property
    def master(self) -> str:
        return self.confs.get("spark.master", "the master that Spark's own settings name")


def settings_of(config: Config) -> SparkSettings:
    """From the defaults and [spark]. Raises ConfigError."""
    given = dict(_flat(value_at(config, "spark", {}), ""))
    submit = given.pop("submit", False)
    if str(submit).lower() not in ("true", "false"):
        raise ConfigError(f"spark.submit must be true or false, not {submit!r}")
    for key in given:
        if key not in _OWN and not key.startswith("spark."):
            near = difflib.get_close_matches(key, _OWN, n=1) or [f"spark.{key}"]
            raise ConfigError(f"[spark]: unknown key {key}; did you mean {near[0]}? It has master, submit and spark.…")
    confs = {key if key.startswith("spark.") else f"spark.{key}": _text(value) for key, value in given.items()}
    defaults = _defaults()
    if _JAVA_OPTIONS in defaults and _JAVA_OPTIONS in confs and _LOG4J not in confs[_JAVA_OPTIONS]:
        confs[_JAVA_OPTIONS] = f"{defaults[_JAVA_OPTIONS]} {confs[_JAVA_OPTIONS]}"  # one key for many things
    return SparkSettings(str(submit).lower() == "true", {**defaults, **confs})


def prepare(settings: SparkSettings) -> None:
    """The environment for a JVM that is about to be started."""
    if _own_folder() is None and (folder := _without_blanks(CONF)) is not None:
        os.environ["SPARK_CONF_DIR"] = folder
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if settings.master.startswith("local"):  # elsewhere Pythons have places of their own
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def has_java() -> bool:
    """Whether Spark will find one."""
    return bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None


def _defaults() -> dict[str, str]:
    """Those of conf/spark-defaults.conf; its log4j2 settings are named by a URI, in which a blank does no harm."""
    if _own_folder() is not None:
        return {}
    lines = (CONF / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    confs = dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    uri = f"{_LOG4J}{(CONF / 'log4j2.properties').as_uri()}"
    return {**confs, _JAVA_OPTIONS: re.sub(rf"{_LOG4J}\S+", uri, confs[_JAVA_OPTIONS])}


def _own_folder() -> Path | None:
    """Where Spark's own settings are, if somebody has made any."""
    named = os.environ.get("SPARK_CONF_DIR")
    if named:
        return Path(named) if Path(named).resolve() != CONF.resolve() else None
    below = Path(os.environ.get("SPARK_HOME", ""), "conf")
    return below if os.environ.get("SPARK_HOME") and (below / "spark-defaults.conf").exists() else None


def _without_blanks(folder: Path) -> str | None:
    """Spark's scripts stumble over a path with blanks in it: as seen from here it may have none."""
    return next((path for path in (str(folder), os.path.relpath(folder)) if " " not in path), None)


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    """`spark.sql.x = 1` is three tables to TOML."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
