"""Print the licence of each package of an environment: `python -m tools.licences`, with the Python of that environment.

An environment with the package and one extra shows what this extra brings. With `--strict`, the exit code is 1 if a
licence is unknown, or is GPL, LGPL, AGPL, SSPL or BUSL.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import NamedTuple

# Words of a licence's name, and how it is called here. The first that fits.
_NAMES = (
    (r"\bagpl|affero", "AGPL"),
    (r"\blgpl|lesser general public", "LGPL"),
    (r"\bgpl|general public licen[sc]e", "GPL"),
    (r"\bsspl|server side public|business source|\bbusl\b|commons clause", "SSPL, BUSL"),
    (r"\bmpl|mozilla public", "MPL-2.0"),
    (r"\beclipse|\bepl", "EPL"),
    (r"apache", "Apache-2.0"),
    (r"\bmit(-0|-cmu)?\b|\bx11\b|\bhpnd\b", "MIT"),
    (r"bsd|\bnew bsd\b", "BSD"),
    (r"\bpsf|python software|\bpython-2", "PSF-2.0"),
    (r"\bisc\b", "ISC"),
    (r"\bzlib\b", "Zlib"),
    (r"unlicen[sc]e|public domain|\bcc0", "public domain"),
)
UNKNOWN = "unknown"
# They ask for the source of a program that uses the package, limit the use, or are not known.
REFUSED = frozenset(("AGPL", "GPL", "LGPL", "SSPL, BUSL", UNKNOWN))


class Package(NamedTuple):
    name: str
    version: str
    licence: str


def licence_of(said: metadata.PackageMetadata) -> str:
    """Return the short name of a licence, from the metadata: expression, classifiers, or the field of old packages."""
    classifiers = [one for one in said.get_all("Classifier") or [] if one.startswith("License ::")]
    old = _first_line(said, "License")
    for text in (_first_line(said, "License-Expression"), " ".join(classifiers), old):
        names = [name for pattern, name in _NAMES if re.search(pattern, text, re.IGNORECASE)]
        if names:
            # "MIT OR GPL" is a choice; "MIT AND GPL" is both.
            return names[-1] if " OR " in text else names[0]
    return UNKNOWN


def _first_line(said: metadata.PackageMetadata, field: str) -> str:
    values: list[str] = said.get_all(field) or [""]
    return values[0].strip().partition("\n")[0]


def packages(found: Iterable[metadata.Distribution]) -> list[Package]:
    """Return packages with their licences, in the order of their names."""
    unique = {one.metadata["Name"].lower(): one for one in found}
    return [Package(one.metadata["Name"], one.version, licence_of(one.metadata)) for _, one in sorted(unique.items())]


def main(words: list[str]) -> int:
    listed = packages(metadata.distributions())
    for one in listed:
        print(f"{one.name:32} {one.version:16} {one.licence}")
    refused = [one for one in listed if one.licence in REFUSED]
    for one in refused if "--strict" in words else ():
        print(f"licences: {one.name} is under {one.licence}: look at its sources, and replace it", file=sys.stderr)
    return 1 if refused and "--strict" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
