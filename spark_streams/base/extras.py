"""This installation: packages that it lacks, the extras that bring them, and how it starts a Python of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from spark_streams.base.version import RELEASED

_COLUMNS = "cluster"  # Arrow and numpy, by which Spark's rows are read and written
_EXTRA_OF = {"numpy": _COLUMNS, "pyarrow": _COLUMNS, "pyspark": "spark", "py4j": "spark"}
_EXTRA_OF |= dict.fromkeys(("fastavro", "protobuf", "jsonschema", "referencing", "google-re2"), "schemas")
_EXTRA_OF["openlineage-python"] = "lineage"
_ROOT = str(Path(__file__).resolve().parents[2])  # of the package


def command_for(extra: str) -> str:
    """Return pip's command for an extra of this package.

    pip keeps a spark-streams that it has installed, of a clone or of a wheel, and gets what the extra adds. If pip has
    not installed it (`--py-files`, `PYTHONPATH`), it would ask its index, which has it only after a release.
    """
    known = RELEASED or _is_installed()
    return f"pip install '{'' if known else '/path/to/'}spark-streams[{extra}]'"


def _is_installed() -> bool:
    """Return whether an installer such as pip has installed this package: it writes its name."""
    from importlib import metadata  # it takes long to import: not at every start of an engine

    found = metadata.distributions(name="spark-streams")
    return any(one.read_text("INSTALLER") is not None for one in found)


def command_that_installs(package: str) -> str:
    """Return pip's command for a package, or for the extra that brings it."""
    extra = _EXTRA_OF.get(package)
    command = f"pip install {package}" if extra is None else command_for(extra)
    return command + (" (or set SPARK_HOME)" if extra == "spark" else "")


def lacks(name: str, package: str) -> str:
    """Return what to say if `name` needs a package that this Python does not have."""
    return f"{name} needs {package}, and this Python has none: {command_that_installs(package)}"


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return the package of an extra that could not be imported; None: it is another one."""
    package = (error.name or "").partition(".")[0]
    return package if package in _EXTRA_OF else None


def python_command(*words: str) -> list[str]:
    """Return the command of this Python with these arguments, for example `-m` and a module.

    -P: otherwise Python looks into the working directory first, and a file `click.py` there would run.
    """
    return [sys.executable, "-P", *words]


def python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment, in which this package can be imported from every folder. Empty entries of PYTHONPATH,
    which stand for the working directory, are left out."""
    folders = [_ROOT, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
