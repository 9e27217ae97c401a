"""What executors run: Pythons with the least that they need, with the package, and packed into an archive."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_streams.base.version import __version__

ROOT = Path(__file__).resolve().parents[3]
LEAST = ("pyarrow", "numpy", "redis[hiredis]")  # pyspark and py4j are Spark's own there
_BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "pyspark_rstream.py", "spark_streams")


def make_wheel(folder: Path, version: str | None = None) -> Path:
    """The package as a wheel, from a copy: building leaves files behind. version: what it says it is."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in _BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    if version is not None:
        file = source / "spark_streams" / "base" / "version.py"
        file.write_text(file.read_text().replace(f'"{__version__}"', f'"{version}"'))
    _pip(Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", str(folder), str(source))
    return next(folder.glob("spark_streams-*.whl"))


def as_zip(wheel: Path, folder: Path) -> Path:
    """For --py-files, which takes no .whl."""
    return Path(shutil.copy(wheel, folder / "spark_streams.zip"))


def make_python(folder: Path, like: Path | None = None) -> Path:
    """A Python with what executors need at least, and neither this package nor pyspark. like: another such one, which
    is copied from."""
    venv.create(folder, symlinks=True, with_pip=like is None)
    python = folder / "bin" / "python"
    if like is None:
        _pip(python, "install", *LEAST)
    else:
        packages = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
        shutil.copytree(like.parent.parent / packages, folder / packages, dirs_exist_ok=True)
    return python


def install(python: Path, wheel: Path) -> None:
    """The package alone: what it depends on, Spark above all, is there or not needed."""
    _pip(python, "install", "--no-deps", "--force-reinstall", str(wheel))


def pack(python: Path, archive: Path) -> Path:
    """As `venv-pack -o env.tar.gz` does it in an activated environment. Fast, for it is large."""
    words = ("--prefix", str(python.parent.parent), "--output", str(archive), "--compress-level", "1")
    _run([sys.executable, "-m", "venv_pack", *words])
    return archive


def _pip(python: Path, *words: str) -> None:
    """With the versions that this project is tested with."""
    pins = str(ROOT / "constraints.txt")
    environment = {one: text for one, text in os.environ.items() if one != "PYTHONPATH"}
    environment |= {"PIP_CONSTRAINT": pins, "PIP_BUILD_CONSTRAINT": pins}
    _run([str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *words], environment)


def _run(words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(words)}\n{ended.stdout}{ended.stderr}"
