"""No package that pip installs with this one asks for the source of programs that use it: tools/licences.py."""

from __future__ import annotations

import os
import subprocess
import sys
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import cast

import pytest
from packaging.requirements import Requirement

from tools.licences import REFUSED, UNKNOWN, licence_of, packages

ROOT = Path(__file__).resolve().parents[2]
# Extras whose packages are in the environment of the tests. The workflow release looks at each extra alone.
EXTRAS = ("cluster", "spark", "console", "schemas", "lineage", "monitor")


def said(**fields: str) -> metadata.PackageMetadata:
    message = Message()
    message["Name"] = "x"
    for name, value in fields.items():
        message[name.replace("_", "-")] = value
    return cast(metadata.PackageMetadata, message)


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License_Expression": "MIT OR Apache-2.0"}, "MIT"),
        ({"License_Expression": "MIT AND GPL-3.0-or-later"}, "GPL"),
        ({"License_Expression": "GPL-2.0-only OR MIT"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: BSD License", "License": "see file"}, "BSD"),
        ({"Classifier": "License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)"}, "LGPL"),
        ({"License": "GNU Affero General Public License"}, "AGPL"),
        ({"License": "Apache License\nVersion 2.0, or the GNU General Public License"}, "Apache-2.0"),
        ({"License": "Business Source License 1.1"}, "SSPL, BUSL"),
        ({"License": "limited to my friends"}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
def test_a_licence_is_read_from_each_form_of_metadata(fields: dict[str, str], licence: str) -> None:
    assert licence_of(said(**fields)) == licence


def brought_by(extras: tuple[str, ...]) -> set[str]:
    """Return the packages that pip installs with these extras in this Python, this one included."""
    done: set[tuple[str, frozenset[str]]] = set()
    asked = [Requirement(f"spark-streams[{','.join(extras)}]")]
    while asked:
        one = asked.pop()
        name = one.name.lower().replace("_", "-")
        if (name, frozenset(one.extras)) in done:
            continue
        done.add((name, frozenset(one.extras)))
        for text in metadata.requires(name) or []:
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in one.extras or {""}):
                asked.append(needed)
    return {name for name, _ in done}


def test_none_of_what_pip_installs_is_copyleft() -> None:
    found = packages(map(metadata.distribution, brought_by(EXTRAS)))
    names = {one.name.lower() for one in found}
    assert {"redis", "pyarrow", "pyspark", "py4j", "starlette", "fastavro", "certifi"} <= names
    assert {one.name: one.licence for one in found if one.licence in REFUSED} == {}
    assert {one.name for one in found if one.licence == "MPL-2.0"} == {"certifi"}
    known = {"Apache-2.0", "MIT", "BSD", "ISC", "PSF-2.0", "MPL-2.0"}  # as docs/guide/review.md says
    assert {one.licence for one in found} <= known


def test_the_command_prints_them_and_refuses_one_that_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "odd-1.dist-info").mkdir()
    text = "Metadata-Version: 2.1\nName: odd\nVersion: 1\nLicense: mine\n"
    (tmp_path / "odd-1.dist-info" / "METADATA").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "tools.licences"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "redis " in ended.stdout
    ended = subprocess.run(
        [*command, "--strict"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "licences: odd is under unknown" in ended.stderr
