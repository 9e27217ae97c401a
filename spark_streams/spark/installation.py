"""Whether this installation can work: what `python -m spark_streams` prints. Only the standard library, and no Spark is
started.

Spark itself runs two more Pythons: on the driver's machine the one that looks for data sources (PYSPARK_DRIVER_PYTHON,
else PYSPARK_PYTHON, else python3), and, on the driver's machine and on the executors', the one of tasks: the same where
that look has found the format, else PYSPARK_PYTHON, else python3 (S70). Both must find this package, the first one as a
plain module on its path (S17, S29).
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
from dataclasses import dataclass, field
from pathlib import Path

from spark_streams._version import __version__
from spark_streams.spark.presence import REMEDY

Version = tuple[int, ...]

# As in pyproject.toml: the oldest version that works, and the first one that may not any more (None: not known).
PYTHON: Version = (3, 11)
# Of pyspark: pip's where the extra `spark` is installed, else Spark's own.
SPARK: tuple[Version, Version | None] = ((4, 0), (5,))
NEEDED: dict[str, tuple[Version, Version | None]] = {
    "pyarrow": ((18,), None),
    "redis": ((5, 0, 8), (9,)),
    "hiredis": ((3,), (4,)),
    "xxhash": ((3, 1), None),
    "numpy": ((1, 26), None),
    "rich": ((13,), None),
    "click": ((8, 1), None),
    "jinja2": ((3, 1), None),
}
_ON_EXECUTORS = ("spark_streams", "numpy", "pyarrow", "redis", "hiredis")  # pyspark is Spark's own there
JAVA = 17
_TOLD = ("pyarrow", "redis")  # the others are named where something is wrong with them
_SECONDS = 20.0  # for another program to answer

# What another Python is asked; an old one must be able to read it, too.
_QUESTION = """
import importlib.util, json, pkgutil, sys
found = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
listed = "pyspark_rstream" in [one.name for one in pkgutil.iter_modules()]
print(json.dumps({"version": sys.version_info[:2], "found": found, "listed": listed}))
"""


@dataclass
class Findings:
    """lines: (what, version or state, where or why), as they are printed; problems: a sentence each, and what to do."""

    lines: list[tuple[str, str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def look() -> Findings:
    """Look at all of it."""
    found = Findings([("spark-streams", __version__, str(Path(__file__).parents[1]))])
    _look_at_python(found)
    _look_at_spark(found)
    _look_at_packages(found)
    _look_at_java(found)
    _look_at_sparks_pythons(found)
    return found


def requirement(name: str, least: Version, below: Version | None) -> str:
    """As pip takes it."""
    return f"{name}>={_dotted(least)}" + (f",<{_dotted(below)}" if below else "")


def numbers(version: str) -> Version:
    """The leading numbers of a version."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _look_at_python(found: Findings) -> None:
    found.lines.append(("Python", _dotted(sys.version_info[:3]), sys.executable))
    if sys.version_info < PYTHON:
        found.problems.append(f"this Python is too old: install spark-streams into a Python {_dotted(PYTHON)} or newer")


def _look_at_packages(found: Findings) -> None:
    missing, unfit, install = [], [], []
    for name, (least, below) in NEEDED.items():
        wanted = requirement(name, least, below)
        spec = importlib.util.find_spec(name)
        shown = "redis-py" if name == "redis" else name
        if spec is None:
            found.lines.append((shown, "missing", wanted))
            missing.append(name)
            install.append(wanted)
            continue
        version = _version_of(name)
        fits = _fits(version, least, below)
        if name in _TOLD or not fits:
            found.lines.append((shown, version, f"{'fits' if fits else 'does not fit'} {wanted}"))
        if not fits:
            unfit.append(f"{name} {version}")
            install.append(wanted)
    said = [f"lacks {', '.join(missing)}"] if missing else []
    said += [f"has {', '.join(unfit)}, which spark-streams {__version__} does not work with"] if unfit else []
    if said:
        remedy = f"run {sys.executable} -m pip install {' '.join(map(repr, install))}"
        found.problems.append(f"this Python {' and '.join(said)}: {remedy}")


def _fits(version: str, least: Version, below: Version | None) -> bool:
    """A version that nobody can tell may fit."""
    have = numbers(version)
    return not have or (have >= least and (below is None or have < below))


def _look_at_spark(found: Findings) -> None:
    """The one that `import pyspark` gives, else the one whose spark-submit would bring it."""
    spec = importlib.util.find_spec("pyspark")
    home = _spark_home()
    if spec is not None and spec.origin:
        package, by = Path(spec.origin).parent, ""
    elif home is not None:
        package, by = home / "python" / "pyspark", f", of {home}: run with its spark-submit"
    else:
        found.lines.append(("pyspark", "missing", requirement("pyspark", *SPARK)))
        found.problems.append(f"this Python has no Spark: {REMEDY}")
        return
    version = _spark_version(package)
    fits = _fits(version, *SPARK)
    wanted = requirement("pyspark", *SPARK)
    found.lines.append(("pyspark", version, f"{'fits' if fits else 'does not fit'} {wanted}{by}"))
    if not fits:
        found.problems.append(
            f"spark-streams {__version__} does not work with Spark {version} ({package}): "
            f"run {sys.executable} -m pip install '{wanted}', or use such a Spark"
        )


def _spark_home() -> Path | None:
    """A Spark that was unpacked: what SPARK_HOME names, else where the spark-submit on the PATH stands."""
    submit = shutil.which("spark-submit")
    named = os.environ.get("SPARK_HOME")
    home = Path(named) if named else Path(submit).resolve().parents[1] if submit else None
    return home if home is not None and (home / "python" / "pyspark" / "version.py").exists() else None


def _spark_version(package: Path) -> str:
    """What its folder says: a downloaded Spark has no metadata, and stands before one that pip has installed."""
    own = package / "version.py"
    said = re.search(r"__version__[^=]*=\s*['\"]([^'\"]+)", own.read_text(encoding="utf-8")) if own.exists() else None
    return said[1] if said else _version_of("pyspark")


def _version_of(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _look_at_java(found: Findings) -> None:
    """The one that Spark's own scripts would take."""
    home = os.environ.get("JAVA_HOME")
    path = f"{home}/bin/java" if home else shutil.which("java")
    remedy = f"install a JDK {JAVA} or newer, or set JAVA_HOME to one"
    said = None if path is None else _answer([path, "-version"])
    version = re.search(r'version "(\d+)([^"]*)"', said or "")
    if version is None:
        found.lines.append(("Java", "missing", f"JAVA_HOME is {home}" if home else "no java on the PATH"))
        found.problems.append(f"no Java answers{f' at {path}' if path else ''}, and Spark needs one: {remedy}")
        return
    found.lines.append(("Java", version[1] + version[2], str(path)))
    if int(version[1]) < JAVA:
        found.problems.append(f"Java {version[1]} is too old for Spark: {remedy}")


def _look_at_sparks_pythons(found: Findings) -> None:
    """format("rstream") in the driver's Python, and the package in that of tasks."""
    driver = next((name for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON") if os.environ.get(name)), None)
    tasks = "PYSPARK_PYTHON" if os.environ.get("PYSPARK_PYTHON") else None
    for variable in dict.fromkeys((driver, tasks)):
        _look_at_sparks_python(found, os.environ[variable] if variable else "python3", variable, variable == driver)


def _look_at_sparks_python(found: Findings, program: str, variable: str | None, looks_up: bool) -> None:
    what = 'format("rstream")' if looks_up else "tasks"
    told = f"{program} ({variable or 'PYSPARK_PYTHON is not set'})"
    remedy = f"export {variable or 'PYSPARK_PYTHON'}={sys.executable}"
    answer = _answer([program, "-c", _QUESTION, *_ON_EXECUTORS])
    try:
        other = json.loads((answer or "").strip().splitlines()[-1])
    except (ValueError, IndexError):
        found.lines.append((what, "not found", told))
        found.problems.append(f"Spark would run {told}, which is no Python that answers: {remedy}")
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
        found.lines.append((what, "found" if looks_up else "can run", told))
        return
    found.lines.append((what, "not found" if looks_up else "cannot run", told))
    found.problems.append(f"Spark would run {told}, which {wrong}: {remedy}")


def _answer(command: list[str]) -> str | None:
    """What a program prints; None where it cannot be run or fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout + ended.stderr
