"""Check what this Python and Spark's other Pythons have. Uses only the standard library, and starts no Spark.

The package does not require pyspark, because a cluster provides its own Spark. So what needs Spark asks whether it is
there; `python -m spark_streams` checks the whole installation.

Spark runs two more Pythons. On the driver's machine, one searches for data sources (PYSPARK_DRIVER_PYTHON, else
PYSPARK_PYTHON, else python3). On the driver and on executors, one runs tasks: the same Python if it has found the
format, else PYSPARK_PYTHON, else python3 (S70). Both must find this package, the first one as a plain module on its
path (S17, S29).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from spark_streams.base.extras import command_for, lacks
from spark_streams.base.version import __version__
from spark_streams.connector.errors import UnsupportedError, WorkerPythonError
from spark_streams.connector.spark.running_pyspark import is_of_connect
from spark_streams.connector.spark.startup.sitecustomize import FOLDER, add_to_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_REMEDY = "install a JDK 17 or newer, or set JAVA_HOME"
_SOURCE = ("DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition")
_SINK = ("DataSourceArrowWriter", "DataSourceStreamWriter", "WriterCommitMessage")


def spark_remedy() -> str:
    """Return what to do if this Python has no Spark."""
    return f"{command_for('spark')}, or run this with a Spark's own Python (spark-submit)"


def check_for_spark(name: str) -> None:
    """Raise UnsupportedError if there is no pyspark with Python sources. name: of the function that needs it."""
    if find_spec("pyspark") is None:
        raise UnsupportedError(f"{name} needs Spark, and this Python has no pyspark: {spark_remedy()}")
    _check_for_classes(name, _SOURCE)
    for package in ("pyarrow", "numpy"):
        if find_spec(package) is None:
            raise UnsupportedError(f"{lacks(name, package)}, here and where tasks run")


def has_java() -> bool:
    """Return whether Spark will find a Java."""
    return bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None


def check_for_java(name: str) -> None:
    """Raise UnsupportedError if a new session would start a JVM and there is no Java. name: as above."""
    elsewhere = ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")  # a server of Spark Connect; the JVM of spark-submit
    if not has_java() and not any(os.environ.get(one) for one in elsewhere):
        raise UnsupportedError(f"{name} starts Spark, and there is no Java: {JAVA_REMEDY}")


def check_for_sink() -> None:
    """Raise UnsupportedError if this pyspark has no Python sinks."""
    _check_for_classes("a sink with format('rstream')", _SINK)


def _check_for_classes(name: str, classes: tuple[str, ...]) -> None:
    try:
        module: object = import_module("pyspark.sql.datasource")
    except ModuleNotFoundError:
        module = None
    missing = [one for one in classes if not hasattr(module, one)]
    if missing:
        version = getattr(import_module("pyspark"), "__version__", "of an unknown version")
        raise UnsupportedError(
            f"{name} needs Spark 4.0 or newer, and this is PySpark {version}: its module pyspark.sql.datasource has "
            f"no {missing[0]}"
        )


# -- python -m spark_streams -------------------------------------------------------------------------------------------

Version = tuple[int, ...]

# As in pyproject.toml: the oldest supported version, and the first unsupported one (None: not known).
PYTHON: Version = (3, 11)
# Versions of pyspark, from pip (extra `spark`) or from a Spark that was unpacked.
SPARK: tuple[Version, Version | None] = ((4, 0), (5,))
# The base, and extra `cluster` (pyarrow, numpy): all that a Python of Spark needs.
NEEDED: dict[str, tuple[Version, Version | None]] = {
    "pyarrow": ((23, 0, 1), None),
    "redis": ((5, 0, 8), (9,)),
    "hiredis": ((3,), (4,)),
    "numpy": ((1, 26), None),
    "rich": ((13,), None),
    "click": ((8, 1), None),
}
_ON_EXECUTORS = ("spark_streams", "numpy", "pyarrow", "redis", "hiredis")  # Spark itself provides pyspark there
JAVA = 17
_ALWAYS_LISTED = ("pyarrow", "redis")  # other packages are listed only if they do not fit
_PROBE_TIMEOUT = 20.0  # time limit for another program
_SAFE = {"PYTHONSAFEPATH": "1"}
_PYTHON = "PYSPARK_PYTHON"

# Program for another Python. Old versions must be able to run it.
_PROBE = """
import importlib.util, json, pkgutil, sys
found = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
listed = "pyspark_rstream" in [one.name for one in pkgutil.iter_modules()]
print(json.dumps({"version": sys.version_info[:2], "found": found, "listed": listed}))
"""


@dataclass
class Findings:
    """Result of the checks. lines: (component, version or state, place or reason); problems: each with its remedy."""

    lines: list[tuple[str, str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_installation() -> Findings:
    """Check Python, Spark, packages, Java and the Pythons that Spark runs."""
    findings = Findings([("spark-streams", __version__, str(Path(__file__).parents[2]))])
    findings.lines.append(("Python", _dotted(sys.version_info[:3]), sys.executable))
    if sys.version_info < PYTHON:
        findings.problems.append(
            f"this Python is too old: install spark-streams into a Python {_dotted(PYTHON)} or newer"
        )
    _check_spark(findings)
    _check_packages(findings)
    _check_java(findings)
    _check_spark_pythons(findings)
    return findings


def requirement(name: str, minimum: Version, below: Version | None) -> str:
    return f"{name}>={_dotted(minimum)}" + (f",<{_dotted(below)}" if below else "")


def numbers(version: str) -> Version:
    """Return the leading numbers of a version."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _check_packages(findings: Findings) -> None:
    missing, unfit, install = [], [], []
    for name, (minimum, below) in NEEDED.items():
        needed = requirement(name, minimum, below)
        spec = importlib.util.find_spec(name)
        shown = "redis-py" if name == "redis" else name
        if spec is None:
            findings.lines.append((shown, "missing", needed))
            missing.append(name)
            install.append(needed)
            continue
        version = _version_of(name)
        fits = _fits(version, minimum, below)
        if name in _ALWAYS_LISTED or not fits:
            findings.lines.append((shown, version, f"{'fits' if fits else 'does not fit'} {needed}"))
        if not fits:
            unfit.append(f"{name} {version}")
            install.append(needed)
    faults = [f"lacks {', '.join(missing)}"] if missing else []
    faults += [f"has {', '.join(unfit)}, which spark-streams {__version__} does not work with"] if unfit else []
    if faults:
        remedy = f"run {sys.executable} -m pip install {' '.join(map(repr, install))}"
        findings.problems.append(f"this Python {' and '.join(faults)}: {remedy}")


def _fits(version: str, minimum: Version, below: Version | None) -> bool:
    """Return whether a version is supported. An unknown version may be."""
    have = numbers(version)
    return not have or (have >= minimum and (below is None or have < below))


def _check_spark(findings: Findings) -> None:
    """Check the Spark of `import pyspark`, else the Spark of spark-submit."""
    spec = importlib.util.find_spec("pyspark")
    home = _spark_home()
    if spec is not None and spec.origin:
        package, origin = Path(spec.origin).parent, ""
    elif home is not None:
        package, origin = home / "python" / "pyspark", f", of {home}: run with its spark-submit"
    else:
        findings.lines.append(("pyspark", "missing", requirement("pyspark", *SPARK)))
        findings.problems.append(f"this Python has no Spark: {spark_remedy()}")
        return
    version = _spark_version(package)
    fits = _fits(version, *SPARK)
    needed = requirement("pyspark", *SPARK)
    findings.lines.append(("pyspark", version, f"{'fits' if fits else 'does not fit'} {needed}{origin}"))
    if not fits:
        findings.problems.append(
            f"spark-streams {__version__} does not work with Spark {version} ({package}): "
            f"run {sys.executable} -m pip install '{needed}', or use such a Spark"
        )


def _spark_home() -> Path | None:
    """Return the folder of an unpacked Spark: SPARK_HOME, else the folder of the spark-submit on the PATH."""
    submit = shutil.which("spark-submit")
    named = os.environ.get("SPARK_HOME")
    home = Path(named) if named else Path(submit).resolve().parents[1] if submit else None
    return home if home is not None and (home / "python" / "pyspark" / "version.py").exists() else None


def _spark_version(package: Path) -> str:
    """Return the version from Spark's folder. A downloaded Spark has no package metadata."""
    file = package / "version.py"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    match = re.search(r"__version__[^=]*=\s*['\"]([^'\"]+)", text)
    return match[1] if match else _version_of("pyspark")


def _version_of(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _check_java(findings: Findings) -> None:
    """Check the Java that Spark's scripts would use."""
    home = os.environ.get("JAVA_HOME")
    path = f"{home}/bin/java" if home else shutil.which("java")
    output = None if path is None else _run_program([path, "-version"])
    version = re.search(r'version "(\d+)([^"]*)"', output or "")
    if version is None:
        findings.lines.append(("Java", "missing", f"JAVA_HOME is {home}" if home else "no java on the PATH"))
        findings.problems.append(f"no Java answers{f' at {path}' if path else ''}, and Spark needs one: {JAVA_REMEDY}")
        return
    findings.lines.append(("Java", version[1] + version[2], str(path)))
    if int(version[1]) < JAVA:
        findings.problems.append(f"Java {version[1]} is too old for Spark: {JAVA_REMEDY}")


def _check_spark_pythons(findings: Findings) -> None:
    """Check that the driver's Python finds format("rstream"), and that the Python of tasks has the packages."""
    driver = next((name for name in ("PYSPARK_DRIVER_PYTHON", _PYTHON) if os.environ.get(name)), None)
    tasks = _PYTHON if os.environ.get(_PYTHON) else None
    for variable in dict.fromkeys((driver, tasks)):
        _check_spark_python(findings, os.environ[variable] if variable else "python3", variable, variable == driver)


def _check_spark_python(
    findings: Findings, program: str, variable: str | None, looks_up: bool, environment: Mapping[str, str] = _SAFE
) -> None:
    purpose = 'format("rstream")' if looks_up else "tasks"
    program_text = f"{program} ({variable or f'{_PYTHON} is not set'})"
    remedy = f"export {variable or _PYTHON}={sys.executable}"
    answer = _run_program([program, "-c", _PROBE, *_ON_EXECUTORS], environment)
    try:
        other = json.loads((answer or "").strip().splitlines()[-1])
    except (ValueError, IndexError):
        findings.lines.append((purpose, "not found", program_text))
        findings.problems.append(f"Spark would run {program_text}, which is not a Python that answers: {remedy}")
        return
    lacking = [name for name in _ON_EXECUTORS if name not in other["found"]]
    version = tuple(other["version"])
    if lacking:
        wrong = f"does not have {', '.join(lacking)}"
    elif version != sys.version_info[:2]:
        wrong = f"is Python {_dotted(version)}, not {_dotted(sys.version_info[:2])} as this one"
    elif looks_up and not other["listed"]:
        wrong = "does not list the module pyspark_rstream"
        remedy = "install spark-streams with pip, not only by a .pth hook, or call spark_streams.register(spark)"
    else:
        findings.lines.append((purpose, "found" if looks_up else "can run", program_text))
        return
    findings.lines.append((purpose, "not found" if looks_up else "cannot run", program_text))
    findings.problems.append(f"Spark would run {program_text}, which {wrong}: {remedy}")


def _run_program(command: list[str], environment: Mapping[str, str] = _SAFE) -> str | None:
    """Return the output of a program, None if it cannot be run or fails. By default a Python imports nothing from the
    working directory, as with `-P`, which an older Python does not have."""
    given = {**os.environ, **environment}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=True, env=given)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout + ended.stderr


# -- Python processes of Spark on this machine: which Python they are, and what they import ----------------------------


def set_up_workers(spark: SparkSession, is_ours: bool) -> None:
    """Prepare Python processes that Spark will start on this machine: not on a cluster, not over Spark Connect.

    They import the installed PySpark (startup/sitecustomize.py). If the session is ours, they run this Python, unless
    something names another one. Raises WorkerPythonError if they cannot run this package's data source.
    """
    if is_of_connect(spark) or not str(spark.sparkContext.master).startswith("local"):
        return
    context, variable = spark.sparkContext, _PYTHON if os.environ.get(_PYTHON) else None
    if FOLDER in context.environment.get("PYTHONPATH", ""):
        return  # it was done before
    if is_ours and variable is None and context.getConf().get("spark.pyspark.python") is None:
        context.pythonExec = sys.executable
    from pyspark import SparkFiles

    sent = [os.path.join(SparkFiles.getRootDirectory(), name) for name in context._python_includes or ()]
    path = [*sent, context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]
    findings, environment = Findings(), {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    if "DATABRICKS_RUNTIME_VERSION" not in os.environ:  # it brings the packages of a notebook in a way of its own
        _check_spark_python(findings, context.pythonExec, variable, False, environment)
    for problem in findings.problems:
        raise WorkerPythonError(f"{problem}, or set os.environ['{_PYTHON}'] before the program creates its session")
    add_to_path(context.environment)
