"""A copy of PySpark under the name `_engine_pyspark`, as a platform's engine has it beside the package `pyspark`.

$RSTREAM_ENGINE_PYSPARK is the folder of the PySpark to copy; else it is the installed one.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pyspark

NAME = "_engine_pyspark"
_LEFT_OUT = (
    "jars", "pandas", "ml", "mllib", "examples", "bin", "sbin", "data", "licenses", "python", "streaming", "tests",
    "testing", "pipelines", "__pycache__",
)  # fmt: skip
# A platform's engine accepts classes that derive from those of `pyspark`. How it does so is not public: here the
# engine's classes count those as subclasses.
_ACCEPTS = """

import pyspark.sql.datasource as _client
for _name in (
    "DataSource", "DataSourceReader", "DataSourceStreamReader", "DataSourceWriter", "DataSourceArrowWriter",
    "DataSourceStreamWriter", "InputPartition", "WriterCommitMessage",
):
    globals()[_name].register(getattr(_client, _name))
"""


def copy_of_pyspark(folder: Path) -> Path:
    """Write the copy into a folder, and return the folder, which belongs on Python's path."""
    source = Path(os.environ.get("RSTREAM_ENGINE_PYSPARK") or Path(pyspark.__file__).parent)
    copy = folder / NAME
    top = {name: source / name for name in _LEFT_OUT}
    shutil.copytree(
        source, copy, ignore=lambda where, names: [name for name in names if top.get(name) == Path(where) / name]
    )
    for file in copy.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        text = re.sub(r"^(\s*)import pyspark$", rf"\1import {NAME} as pyspark", text, flags=re.MULTILINE)
        text = re.sub(r"^(\s*)(from|import) pyspark\b", rf"\1\2 {NAME}", text, flags=re.MULTILINE)
        if file == copy / "sql" / "datasource.py":
            text = text.replace("class InputPartition:", "class InputPartition(ABC):")
            text = text.replace("class WriterCommitMessage:", "class WriterCommitMessage(ABC):") + _ACCEPTS
        file.write_text(text, encoding="utf-8")
    return folder


def version_of_copy(folder: Path) -> str:
    """Return the copy's version of PySpark."""
    found = re.search(r'__version__.*?["\'](\d[^"\']*)', (folder / NAME / "version.py").read_text())
    assert found is not None
    return found[1]
