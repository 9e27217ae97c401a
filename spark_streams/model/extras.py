"""Packages that `pip install spark-streams` does not bring, and the extra that does."""

from __future__ import annotations

_COLUMNS = "cluster"  # Arrow and numpy, by which Spark's rows are read and written
_EXTRA_OF = {"numpy": _COLUMNS, "pyarrow": _COLUMNS, "pyspark": "spark", "py4j": "spark"}
_EXTRA_OF |= dict.fromkeys(("fastavro", "protobuf", "jsonschema", "referencing", "google-re2"), "schemas")
_EXTRA_OF["openlineage-python"] = "lineage"


def command_that_installs(package: str) -> str:
    """Return pip's command for a package, or for the extra that brings it."""
    extra = _EXTRA_OF.get(package)
    command = f"pip install {package}" if extra is None else f"pip install 'spark-streams[{extra}]'"
    return command + (" (or set SPARK_HOME)" if extra == "spark" else "")


def lacks(name: str, package: str) -> str:
    """Return what to say if `name` needs a package that this Python does not have."""
    return f"{name} needs {package}, and this Python has none: {command_that_installs(package)}"


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return the package of an extra that could not be imported; None: it is another one."""
    package = (error.name or "").partition(".")[0]
    return package if package in _EXTRA_OF else None
