"""Let Spark's Python processes import PySpark from where pip has installed it, and not from Spark's archive.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first on the path of each Python process. Python keeps no compiled code
of an archive, so each process compiles PySpark again, which takes half a second (S78). If SPARK_HOME is the folder that
pip has installed, the same modules are on the path a second time, compiled.

In Spark's daemon, it also hides the traceback of a worker whose connection the JVM has closed. The JVM does so when it
needs no more rows: at a limit, and at the end of a program. Nothing is wrong, and no row is missing.

Python runs a module with this name when it starts, if the module's folder is in PYTHONPATH. It uses only the standard
library, because it also runs in processes that lack this package's requirements.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import MutableMapping
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))


def add_to_path(environment: MutableMapping[str, str]) -> None:
    """Add the folder to PYTHONPATH in the environment of processes that will be started."""
    path = environment.get("PYTHONPATH", "")
    if FOLDER not in path.split(os.pathsep):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [FOLDER, path]))


def remove_archives_of_pyspark() -> None:
    """Remove Spark's archives from sys.path if the PySpark of SPARK_HOME is on it as an installed package."""
    home = os.path.realpath(os.environ.get("SPARK_HOME") or os.devnull)
    if os.path.dirname(home) in map(os.path.realpath, sys.path):
        archives = os.path.join(home, "python", "lib")
        sys.path[:] = [entry for entry in sys.path if os.path.dirname(os.path.realpath(entry)) != archives]


_OF_A_CLOSED_CONNECTION = (BrokenPipeError, ConnectionResetError, EOFError)


def hide_closed_connections() -> None:
    """Let traceback.print_exc, which the daemon calls for a worker that has failed, skip closed connections."""
    import traceback

    print_exc = traceback.print_exc

    def print_other_errors(*arguments: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], _OF_A_CLOSED_CONNECTION):
            print_exc(*arguments, **options)

    traceback.print_exc = print_other_errors


def _run_hidden_module() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]
    this = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = this


if __name__ == "sitecustomize":
    remove_archives_of_pyspark()
    if "pyspark.daemon" in sys.orig_argv:
        hide_closed_connections()
    _run_hidden_module()
