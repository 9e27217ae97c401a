"""Fetches the servers that are not here yet, and says what is: `python -m tests.legs.versions [NAME…]`.

Exit code 1 where one cannot be had: the table says why.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.legs.versions import debian, wheels
from tests.legs.versions.folder import HOME, ROOT, NotToBeHadError, bin_of, checked, emptied, link, version_of
from tests.legs.versions.wanted import Installed, Package, Wanted, Wheel, named


def main(words: list[str]) -> int:
    """Exit code."""
    try:
        wanted = named(words)
    except ValueError as error:
        print(f"scripts/servers: {error}", file=sys.stderr)
        return 2
    rows = [(one.name, *ready(one)) for one in wanted]
    print_table(rows)
    return int(any(version is None for _, version, _ in rows))


def ready(one: Wanted) -> tuple[str | None, str]:
    """Its version and how it is started, once it is here; or None and why it is not."""
    version = version_of(one.name)
    reasons = []
    for source in one.sources if version is None or not version.startswith(one.version) else ():
        print(f"{one.name} … {_where(source)}", file=sys.stderr, flush=True)
        try:
            version = fetched(one, source)
            break
        except NotToBeHadError as error:
            reasons.append(f"{_where(source)}: {error}")
    else:
        if reasons:
            shutil.rmtree(HOME / one.name, ignore_errors=True)
            return None, "not to be had: " + "; ".join(reasons)
    return version, f"{(bin_of(one.name) / 'redis-server').relative_to(ROOT)} --port 6390"


def fetched(one: Wanted, source: Installed | Package | Wheel) -> str:
    """Its version, now that it is here. Raises NotToBeHadError."""
    installed = shutil.which("redis-server")
    home = emptied(one.name)
    if isinstance(source, Package):
        debian.fetch(source, home)
    elif isinstance(source, Wheel):
        wheels.fetch(source, home)
    elif installed is None:
        raise NotToBeHadError("there is none")
    else:
        link(home, "redis-server", Path(installed))
    return checked(one.name, one.version)


def _where(source: Installed | Package | Wheel) -> str:
    if isinstance(source, Package):
        return f"{source.name} of Debian's {source.suite}"
    return source.requirement if isinstance(source, Wheel) else "the redis-server that is installed"


def print_table(rows: list[tuple[str, str | None, str]]) -> None:
    """A line for each server."""
    for name, version, how in [("server", "version", "start it with"), *rows]:
        print(f"{name:10}  {version or '-':8}  {how}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
