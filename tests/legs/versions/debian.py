"""Packages of another suite of Debian, beside the system: fetched by an apt whose lists, cache and sources are its own.

The mirror, its key and the architecture are those of the system's own sources; nothing is installed, nothing of the
system is changed, and it takes no root.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.legs.versions.folder import HOME, PACKAGE, NotToBeHadError, start_on_own_libraries
from tests.legs.versions.wanted import Package

KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# What the programs of redis-tools and valkey-tools are linked with, and what that is linked with in turn.
LIBRARIES = (
    *("libc6", "libgcc-s1", "libatomic1", "libstdc++6", "libjemalloc2", "liblzf1", "libzstd1", "zlib1g", "libssl3"),
    *("libsystemd0", "libcap2", "liblzma5", "liblz4-1", "libgcrypt20", "libgpg-error0"),
)
_ROOT = HOME / "apt"


def fetch(package: Package, home: Path) -> None:
    """The package's programs and their libraries into home/package. Raises NotToBeHadError."""
    _update(package.suite, package.libraries)
    _unpack([package.name], package.suite, home / PACKAGE)
    _unpack(_present(package.libraries), package.libraries, home / PACKAGE)
    programs = home / PACKAGE / "usr" / "bin"
    # Debian's server is the same file as the tool that checks dumps: it looks at what it was called.
    kind = package.name.removesuffix("-tools")
    start_on_own_libraries(home, "redis-server", programs / f"{kind}-check-rdb")
    start_on_own_libraries(home, "redis-cli", programs / f"{kind}-cli")


def _mirror() -> str:
    """Where the system's own packages of Debian come from."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NotToBeHadError("this machine has no apt")
    form = "$(LABEL) $(REPO_URI)"
    ran = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for line in ran.stdout.splitlines():
        label, _, where = line.partition(" ")
        if label == "Debian":
            return where
    raise NotToBeHadError("no apt source of this machine is Debian's (or apt-get update has never run)")


def _options() -> list[str]:
    state, cache = _ROOT / "state", _ROOT / "cache"
    for folder in (state / "lists" / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    (_ROOT / "status").touch()
    settings = {
        "Dir::State": state,
        "Dir::State::status": _ROOT / "status",
        "Dir::Cache": cache,
        "Dir::Etc::sourcelist": _ROOT / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _update(*suites: str) -> None:
    """The lists of these suites, as the mirror has them now. Raises NotToBeHadError."""
    key = f"[signed-by={KEYS}] " if KEYS.exists() else ""
    lines = [f"deb {key}{_mirror()} {suite} main\n" for suite in dict.fromkeys(suites)]
    _ROOT.mkdir(parents=True, exist_ok=True)
    (_ROOT / "sources.list").write_text("".join(lines))
    if _apt("apt-get", "update", "--error-on=any").returncode:
        raise NotToBeHadError(f"suite {' or '.join(dict.fromkeys(suites))} cannot be read from this machine's mirror")


def _present(suite: str) -> list[str]:
    """Of the libraries those that the suite has, under the name that it gives them (t64: with a clock beyond 2038)."""
    found = _apt("apt-cache", "madison", *[name for one in LIBRARIES for name in (one, f"{one}t64")]).stdout
    here = {line.split("|")[0].strip() for line in found.splitlines() if f" {suite}/" in line}
    return [name for one in LIBRARIES for name in (one, f"{one}t64") if name in here]


def _unpack(names: list[str], suite: str, root: Path) -> None:
    folder = _ROOT / "packages"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ran = _apt("apt-get", "download", *[f"{name}/{suite}" for name in names], cwd=folder)
    if ran.returncode:
        raise NotToBeHadError(f"{' '.join(names)} of suite {suite} cannot be downloaded: {_last(ran.stderr)}")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, root], check=True)
    shutil.rmtree(folder)
    shutil.rmtree(root / "usr" / "share", ignore_errors=True)  # manuals


def _apt(program: str, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [program, "-q", *_options(), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("E:")]
    return lines[-1].removeprefix("E:").strip() if lines else "apt does not say why"
