"""What the jobs share: their configuration, session, streaming query and Parquet, and how they stop.

The jobs themselves stand in jobs/ beside the package, one file each, for spark-submit. A job imports the package and no
other job, so the package is all that `--py-files` has to bring. No other part of the package imports this one.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

# Before anything imports them: a wrong Python is one line, not a traceback.
for _name in ("click", "numpy", "pyarrow", "pyspark", "redis", "rich"):
    if find_spec(_name) is None:
        sys.exit(
            f"{Path(sys.argv[0]).name}: {sys.executable} lacks {_name}: activate the environment that "
            "spark-streams is installed in (. .venv/bin/activate), or set PYSPARK_PYTHON to its python"
        )
