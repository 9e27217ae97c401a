"""PySpark's modules, compiled, in the zip archives from which Spark's processes of Python import them.

Python keeps nothing of what it compiles out of a zip archive, so each of these processes, half a dozen for a query,
compiles PySpark anew: 0.5 s of processor time (docs/facts.md, S78).
"""

from __future__ import annotations

import py_compile
import tempfile
import zipfile
from pathlib import Path


def zips(spark_home: Path) -> list[Path]:
    """PySpark and py4j of this Spark, or of pip's package."""
    return sorted(spark_home.glob("python/lib/*.zip"))


def is_compiled(archive: Path) -> bool:
    """Whether compiled modules are in it."""
    with zipfile.ZipFile(archive) as found:
        return any(name.endswith(".pyc") for name in found.namelist())


def compile_within(archive: Path) -> None:
    """The sources stay in it. Raises OSError where its folder may not be written to."""
    _rewrite(archive, compiled=True)


def drop_compiled(archive: Path) -> None:
    """As it was before. Raises OSError."""
    _rewrite(archive, compiled=False)


def _rewrite(archive: Path, compiled: bool) -> None:
    """The archive is put in place whole, or stays as it was."""
    made = archive.with_suffix(".made")
    try:
        with zipfile.ZipFile(archive) as old, zipfile.ZipFile(made, "w") as new:
            for one in old.infolist():
                if one.filename.endswith(".pyc"):
                    continue
                content = old.read(one)
                new.writestr(one, content)
                if compiled and one.filename.endswith(".py") and "/tests/" not in one.filename:
                    new.writestr(f"{one.filename}c", _compiled(one.filename, content))
        made.chmod(archive.stat().st_mode)
        made.replace(archive)
    finally:
        made.unlink(missing_ok=True)


def _compiled(name: str, source: bytes) -> bytes:
    """name: of the module's file in the archive."""
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "module.py")
        module.write_bytes(source)
        # By no time of change: an archive's times are of two seconds, and of no zone.
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        made = py_compile.compile(str(module), dfile=name, doraise=True, invalidation_mode=unchecked)
        return Path(str(made)).read_bytes()


if __name__ == "__main__":
    from spark_streams.spark.quick_start import spark_home

    for path in zips(spark_home()):
        if not is_compiled(path):
            compile_within(path)
