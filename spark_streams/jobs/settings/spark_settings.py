"""Settings of a job's Spark if spark-submit does not pass them: the defaults of jobs/conf, overridden by [spark].

A folder of Spark settings (SPARK_CONF_DIR, or conf/spark-defaults.conf below SPARK_HOME) takes the place of the
defaults of jobs/conf. The folder conf/ of a clone has the same files.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.spark.startup.sitecustomize import add_to_path
from spark_streams.jobs.settings.config import FREE, Config, value_at

# Keys of [spark]: `master`, `submit`, and any key of Spark, `spark.…`.
SHAPE = FREE
CONF = Path(__file__).parents[1] / "conf"
_LOG4J = "-Dlog4j2.configurationFile="
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_OWN = ("master", "submit")
# For a JVM that lives for seconds: it compiles quickly, not well. That halves its processor time (S101).
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"
_CLASS_ARCHIVE = ("-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile=")


class SparkSettings(NamedTuple):
    """Settings of [spark]. submit: run the job by spark-submit; confs: Spark's keys, including `spark.master`."""

    submit: bool
    confs: dict[str, str]

    @property
    def master(self) -> str:
        return self.confs.get("spark.master", "the master that Spark's own settings name")


def settings_of(config: Config) -> SparkSettings:
    """Merge the defaults and [spark]. Raises ConfigError."""
    settings = dict(_flat(value_at(config, "spark", {}), ""))
    submit = settings.pop("submit", False)
    if str(submit).lower() not in ("true", "false"):
        raise ConfigError(f"spark.submit must be true or false, not {submit!r}")
    for key in settings:
        if key not in _OWN and not key.startswith("spark."):
            near = difflib.get_close_matches(key, _OWN, n=1) or [f"spark.{key}"]
            raise ConfigError(
                f"[spark]: unknown key {key}; did you mean {near[0]}? Valid keys: master, submit, spark.…"
            )
    confs = {key if key.startswith("spark.") else f"spark.{key}": _text(value) for key, value in settings.items()}
    defaults = _defaults()
    if _JAVA_OPTIONS in defaults and _JAVA_OPTIONS in confs and _LOG4J not in confs[_JAVA_OPTIONS]:
        confs[_JAVA_OPTIONS] = f"{defaults[_JAVA_OPTIONS]} {confs[_JAVA_OPTIONS]}"  # one key holds all Java options
    return SparkSettings(str(submit).lower() == "true", {**defaults, **confs})


def prepare(settings: SparkSettings, short_lived: bool = False) -> None:
    """Set the environment variables of the JVM that Spark will start. short_lived: for a few seconds."""
    java_options = os.environ.get("SPARK_SUBMIT_OPTS", "").split(" ")
    if short_lived and _SHORT_LIVED not in java_options:  # spark.driver.extraJavaOptions come later, so they count
        os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*filter(None, java_options), _SHORT_LIVED])
    # For spark-env.sh, which drops two warnings. Spark has it on the class path: Java then uses no archive (S77).
    has_archive = any(option.startswith(_CLASS_ARCHIVE) for option in java_options)
    if not has_archive and _user_conf_folder() is None and (folder := _path_without_blanks(CONF)) is not None:
        os.environ["SPARK_CONF_DIR"] = folder
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if settings.master.startswith("local"):  # on a cluster, Python may have another path
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Spark's web interface listens there. It has no login, and Spark has no property for the address.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Also for the process that searches for data sources: a session cannot change its environment.
        add_to_path(os.environ)


def _defaults() -> dict[str, str]:
    """Return the settings of conf/spark-defaults.conf, with log4j2's file as a URI, which may contain blanks."""
    if _user_conf_folder() is not None:
        return {}
    lines = (CONF / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    confs = dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    uri = f"{_LOG4J}{(CONF / 'log4j2.properties').as_uri()}"
    return {**confs, _JAVA_OPTIONS: re.sub(rf"{_LOG4J}\S+", uri, confs[_JAVA_OPTIONS])}


def _user_conf_folder() -> Path | None:
    """Return the folder of Spark settings that the user has set up, if any."""
    conf_dir = os.environ.get("SPARK_CONF_DIR")
    if conf_dir:
        return Path(conf_dir) if Path(conf_dir).resolve() != CONF.resolve() else None
    home_conf = Path(os.environ.get("SPARK_HOME", ""), "conf")
    return home_conf if os.environ.get("SPARK_HOME") and (home_conf / "spark-defaults.conf").exists() else None


def _path_without_blanks(folder: Path) -> str | None:
    """Return the absolute or relative path if it has no blank, which Spark's scripts do not support, else None."""
    return next((path for path in (str(folder), os.path.relpath(folder)) if " " not in path), None)


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    """Yield dotted keys. `spark.sql.x = 1` is nested tables in TOML."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
