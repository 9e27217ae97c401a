"""How a job starts Spark: the settings, the file that passes them, the JVM of this Python, and spark-submit.

The settings are the defaults of jobs/conf, overridden by [spark]. A folder of Spark settings (SPARK_CONF_DIR, or
conf/spark-defaults.conf below SPARK_HOME) takes the place of the defaults.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, NoReturn

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from spark_streams.base.printable import printable
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.spark.startup.sitecustomize import add_to_path
from spark_streams.jobs.job_config import FREE, Config, value_at

# Keys of [spark]: `master`, `submit`, and any key of Spark, `spark.…`.
SHAPE = FREE
CONF = Path(__file__).parent / "conf"  # of the repository
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
    # Spark's scripts support no blanks in it.
    folders = [path for path in (str(CONF), os.path.relpath(CONF)) if " " not in path]
    if not has_archive and _user_conf_folder() is None and folders:
        os.environ["SPARK_CONF_DIR"] = folders[0]
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


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    """Yield dotted keys. `spark.sql.x = 1` is nested tables in TOML."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Spark's settings as a properties file for spark-submit. As arguments, `ps` would show their values to every user.
#
# On Linux the file has no name: spark-submit reads it by a file descriptor that it inherits, and the file goes with the
# last process that has it, however that ends. Elsewhere a descriptor is read only once, and spark-submit reads twice:
# there the file has a name, and a shell removes it when the last process that has its pipe has ended.


_SPECIAL = re.compile(r"[\\=:#!\s]|[^\x20-\x7e]")
_REMOVE = 'read -r _; rm -f -- "$1"'


class PropertiesFile(NamedTuple):
    """A file of mode 0600. descriptor: what spark-submit must inherit for as long as it needs the file."""

    path: str
    descriptor: int

    @property
    def arguments(self) -> list[str]:
        """Arguments of spark-submit. Spark's own spark-defaults.conf still counts, where the file has no value."""
        return ["--load-spark-defaults", "--properties-file", self.path]


def write_properties(settings: Mapping[str, str]) -> PropertiesFile:
    """Write settings for a spark-submit that this process starts or becomes."""
    text = properties_text(settings).encode("ascii")
    if not hasattr(os, "memfd_create"):
        return _write_named(text)
    descriptor = os.memfd_create("spark.properties", 0)  # 0: inherited
    os.fchmod(descriptor, 0o600)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text)
    return PropertiesFile(f"/proc/self/fd/{descriptor}", descriptor)


def properties_text(settings: Mapping[str, str]) -> str:
    """Return the text of a java.util.Properties in ASCII. Spark drops blanks at both ends of a value."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    if " " <= character <= "~":
        return f"\\{character}"
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _write_named(text: bytes) -> PropertiesFile:
    descriptor, path = tempfile.mkstemp(prefix="rstream-", suffix=".properties")  # mode 0600
    ended, held = os.pipe()
    subprocess.Popen(
        ["/bin/sh", "-c", _REMOVE, "sh", path],
        stdin=ended,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C does not end it before the others
    )
    os.close(ended)
    with open(descriptor, "wb") as file:
        file.write(text)
    os.set_inheritable(held, True)
    return PropertiesFile(path, held)


_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_OPTION = "--properties-file"  # spark-submit reads the last one only


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM that the next session uses with these settings. Do nothing if this process has one.

    Raises ConfigError if PYSPARK_SUBMIT_ARGS names a file of settings of its own.
    """
    if SparkContext._gateway is not None:
        return
    before = os.environ.get(_ARGUMENTS)
    if any(word.partition("=")[0] == _OPTION for word in shlex.split(before or "")):
        raise ConfigError(
            f"{_ARGUMENTS} has {_OPTION}, and Spark reads only one such file: move its settings into [spark] of the "
            "job's TOML file, or into spark-defaults.conf"
        )
    file = write_properties(settings)
    os.environ[_ARGUMENTS] = " ".join([*file.arguments, before or "pyspark-shell"])
    try:
        # It returns when the JVM has read the file.
        gateway = launch_gateway(popen_kwargs={"pass_fds": (file.descriptor,)})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    finally:
        os.close(file.descriptor)
        if before is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = before


_ENTRY = Path(__file__).parent / "__main__.py"


def find_spark_submit() -> str | None:
    """Return the path of spark-submit: that of SPARK_HOME, else of pyspark, else the first one of PATH."""
    if os.environ.get("SPARK_HOME"):
        return shutil.which("spark-submit", path=str(Path(os.environ["SPARK_HOME"]) / "bin"))
    pyspark = find_spec("pyspark")
    folder = None if pyspark is None or pyspark.origin is None else Path(pyspark.origin).parent / "bin"
    return shutil.which("spark-submit", path=str(folder)) or shutil.which("spark-submit")


def exec_spark_submit(spark_submit: str, settings: SparkSettings, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by spark-submit, so that signals and exit code are the job's. arguments: the job's name and
    its own arguments."""
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
