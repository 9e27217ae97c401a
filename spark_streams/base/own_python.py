"""How the product starts a Python of its own: without modules of the working directory.

With `-m` or `-c`, Python looks into the working directory first. A file `click.py` there would run in place of the
package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])


def python_command(*words: str) -> list[str]:
    """Return the command of this Python with these arguments, for example `-m` and a module."""
    return [sys.executable, "-P", *words]


def python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment, in which this package can be imported from every folder. Empty entries of PYTHONPATH,
    which stand for the working directory, are left out."""
    folders = [_ROOT, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
