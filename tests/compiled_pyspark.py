"""`python -m tests.compiled_pyspark`: PySpark's modules stand compiled in the archives from which Spark's processes of
Python import them.

Python keeps nothing of what it compiles out of a zip archive, so each of these processes, half a dozen for a query,
compiles PySpark anew: 0.5 s of processor time (docs/facts.md, S78). Without this the tests only take longer.
"""

from __future__ import annotations

import py_compile
import tempfile
import zipfile
from pathlib import Path

import pyspark


def compile_within(archive: Path) -> None:
    """The archive is put in place whole, or stays as it was; one that is compiled already stays as it is."""
    made = archive.with_suffix(".compiled")
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(made, "w") as new:
        if any(name.endswith(".pyc") for name in old.namelist()):
            made.unlink()
            return
        for one in old.infolist():
            content = old.read(one)
            new.writestr(one, content)
            if one.filename.endswith(".py") and "/tests/" not in one.filename:
                new.writestr(f"{one.filename}c", _compiled(one.filename, content))
    made.replace(archive)


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
    for path in Path(pyspark.__path__[0]).glob("python/lib/*.zip"):
        compile_within(path)
