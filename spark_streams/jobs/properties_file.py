"""Spark's settings as a properties file for spark-submit. As arguments, `ps` would show their values to every user.

On Linux the file has no name: spark-submit reads it by a file descriptor that it inherits, and the file goes with the
last process that has it, however that ends. Elsewhere a descriptor is read only once, and spark-submit reads twice:
there the file has a name, and a shell removes it when the last process that has its pipe has ended.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from typing import NamedTuple

_SPECIAL = re.compile(r"[\\=:#!\s]|[^\x20-\x7e]")
_REMOVE = 'read -r _; rm -f -- "$1"'


class PropertiesFile(NamedTuple):
    """A file of mode 0600. descriptor: what spark-submit must inherit for as long as it needs the file."""

    path: str
    descriptor: int

    @property
    def arguments(self) -> list[str]:
        """Arguments of spark-submit. Spark's own spark-defaults.conf still counts, where the file has no value."""
        return ["--load-spark-defaults", "--properties-file", self.path]


def write_properties(settings: Mapping[str, str]) -> PropertiesFile:
    """Write settings for a spark-submit that this process starts or becomes."""
    text = properties_text(settings).encode("ascii")
    if not hasattr(os, "memfd_create"):
        return _write_named(text)
    descriptor = os.memfd_create("spark.properties", 0)  # 0: inherited
    os.fchmod(descriptor, 0o600)
    _write(descriptor, text)
    return PropertiesFile(f"/proc/self/fd/{descriptor}", descriptor)


def properties_text(settings: Mapping[str, str]) -> str:
    """Return the text of a java.util.Properties in ASCII. Spark drops blanks at both ends of a value."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    if " " <= character <= "~":
        return f"\\{character}"
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _write_named(text: bytes) -> PropertiesFile:
    descriptor, path = tempfile.mkstemp(prefix="rstream-", suffix=".properties")  # mode 0600
    ended, held = os.pipe()
    subprocess.Popen(
        ["/bin/sh", "-c", _REMOVE, "sh", path],
        stdin=ended,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C does not end it before the others
    )
    os.close(ended)
    _write(descriptor, text)
    os.close(descriptor)
    os.set_inheritable(held, True)
    return PropertiesFile(path, held)


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]
