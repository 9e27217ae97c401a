"""Build the source package and the wheel, the same bytes from the same commit: `python -m tools.build_package`.

Run in a clean checkout, with an environment that has `build` and setuptools (.github/build-tools.txt). The files are in
dist/. Their times are `SOURCE_DATE_EPOCH`, by default the moment of the commit; their order is that of their names, and
their rights are those that git knows. setuptools does this for the wheel, which is built from the source package.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def moment() -> int:
    """Return the seconds since 1970 that the files get. Raises SystemExit if neither variable nor commit says it."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None:
        return int(given)
    asked = ["git", "log", "-1", "--format=%ct"]
    ended = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit("build_package: there is no commit here whose time the files could get: set SOURCE_DATE_EPOCH")
    return int(ended.stdout)


def build(source: Path, out: Path, seconds: int) -> list[Path]:
    """Build a folder into `out`, and return the source package and the wheel. seconds: since 1970, of all files."""
    os.umask(0o022)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _build("--sdist", source, Path(folder), seconds)
        [made] = Path(folder).glob("*.tar.gz")
        package = out / made.name
        clamp(made, package, seconds)
        with tarfile.open(package) as packed:
            if hasattr(tarfile, "tar_filter"):  # Python 3.11.4
                packed.extraction_filter = tarfile.tar_filter
            packed.extractall(folder)
        _build("--wheel", Path(folder, package.name.removesuffix(".tar.gz")), out, seconds)
    [wheel] = out.glob(package.name.removesuffix(".tar.gz") + "-*.whl")
    return [package, wheel]


def _build(kind: str, source: Path, out: Path, seconds: int) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(out), str(source)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"build_package: build {kind} failed:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")


def clamp(made: Path, into: Path, seconds: int) -> None:
    """Write a tar.gz again: sorted by name, one time, no owner, and the rights that git knows."""
    with (
        tarfile.open(made) as old,
        into.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.pax_headers = seconds, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def main() -> None:
    for path in build(ROOT, ROOT / "dist", moment()):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
