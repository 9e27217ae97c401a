"""`.servers/<name>` of the checkout: bin/redis-server starts the server, whatever it is called where it comes from.

    bin/redis-server    a link to the program, or a line of shell that starts it on libraries of its own
    bin/redis-cli       likewise, where the package has one
    package/            what the package holds

So a PATH that begins with bin/ chooses the server for everything that starts one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HOME = ROOT / ".servers"
PACKAGE = "package"
_VERSION = re.compile(r"v=(\S+)")


class NotToBeHadError(Exception):
    """Why a server is not here, in a sentence."""


def bin_of(name: str) -> Path:
    """The folder that PATH is to begin with."""
    return HOME / name / "bin"


def version_of(name: str) -> str | None:
    """What its program says; None where there is none that runs."""
    try:
        return _read_version(bin_of(name) / "redis-server")
    except (OSError, NotToBeHadError):
        return None


def emptied(name: str) -> Path:
    """Its folder, with nothing in it."""
    home = HOME / name
    shutil.rmtree(home, ignore_errors=True)
    (home / "bin").mkdir(parents=True)
    (home / PACKAGE).mkdir()
    return home


def link(home: Path, called: str, program: Path) -> None:
    """bin/<called> is this program, of the package or of the system."""
    if home not in program.parents:
        (home / "bin" / called).symlink_to(program)
        return
    program.chmod(0o755)
    (home / "bin" / called).symlink_to(os.path.relpath(program, home / "bin"))


def start_on_own_libraries(home: Path, called: str, program: Path) -> None:
    """bin/<called> is this program, on the libraries (and the loader) in package/ instead of the system's."""
    loader = next(iter(sorted((home / PACKAGE).rglob("ld-linux*.so.*"))), None)
    if loader is None:
        raise NotToBeHadError("its packages hold no loader (ld-linux)")
    folders = sorted({f"$here/{path.parent.relative_to(home)}" for path in (home / PACKAGE).rglob("lib*.so.*")})
    # The loader is given the name, because the program looks at what it was called to know what it is.
    script = home / "bin" / called
    script.write_text(
        f"#!/bin/sh\nhere=${{0%/bin/*}}\n"
        f'exec "$here/{loader.relative_to(home)}" --library-path "{":".join(folders)}" --argv0 {called} '
        f'"$here/{program.relative_to(home)}" "$@"\n'
    )
    script.chmod(0o755)


def checked(name: str, version: str) -> str:
    """The version of what is there now. Raises NotToBeHadError where it does not run, or is another one."""
    try:
        found = _read_version(bin_of(name) / "redis-server")
    except OSError as error:
        raise NotToBeHadError(f"its program does not run: {error}") from error
    if not found.startswith(version):
        raise NotToBeHadError(f"it is {found} there")
    return found


def _read_version(program: Path) -> str:
    ran = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = _VERSION.search(ran.stdout)
    if found is None:
        raise NotToBeHadError(f"its program does not run: {(ran.stderr or ran.stdout).strip()}")
    return found[1]
