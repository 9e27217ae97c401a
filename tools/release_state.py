"""Say in each file whether there is a release: `python -m tools.release_state`.

CHANGELOG.md has the one fact: an entry whose heading has a date is a release, one that says "unreleased" is none. What
depends on it elsewhere is in the table PLACES, in both forms. The command writes the form that is true into the files.
tests/project/test_release_state.py fails if a file says something else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_HOME = "https://github.com/spark-streams/spark-streams"
_IMAGE = "ghcr.io/spark-streams/spark-streams"
_SITE = "https://spark-streams.github.io/spark-streams/"
_VERSION = "{version}"
_CLONE = "git clone ADDRESS-OF-THIS-REPOSITORY spark-streams\n"


class Place(NamedTuple):
    """What some files say before the first release, and after one. `{version}`: of the newest release."""

    files: tuple[str, ...]  # patterns below the root
    unreleased: str
    released: str

    def stated(self, text: str, version: str) -> str:
        """Return the text of a file with the form that is true. version: empty if nothing was released."""
        form = self.released.replace(_VERSION, version) if version else self.unreleased
        return self._either().sub(lambda _: form, text)

    def is_in(self, text: str) -> bool:
        """Return whether the text of a file has one of the two forms."""
        return self._either().search(text) is not None

    def _either(self) -> re.Pattern[str]:
        released = re.escape(self.released).replace(re.escape(_VERSION), r"\d+\.\d+\.\d+")
        return re.compile(f"{re.escape(self.unreleased)}|{released}")


# A form that is a part of another place's form comes after that.
PLACES = (
    Place(
        ("README.md",),
        f"**Nothing is released yet.** `spark-streams` on PyPI, `{_IMAGE}` and "
        "`spark-streams.github.io` have nothing of this project. What this page says ran "
        "[from a clone](docs/reference/evidence.md).",
        "[![PyPI](https://img.shields.io/pypi/v/spark-streams)](https://pypi.org/project/spark-streams/) "
        f"[![CI]({_HOME}/actions/workflows/ci.yml/badge.svg)]({_HOME}/actions/workflows/ci.yml) "
        f"[![Nightly]({_HOME}/actions/workflows/nightly.yml/badge.svg)]({_HOME}/actions/workflows/nightly.yml)",
    ),
    Place(
        ("README.md", "docs/guide/install.md"),
        f"{_CLONE}pip install './spark-streams[spark]'",
        "pip install 'spark-streams[spark]'",
    ),
    Place(
        ("docs/guide/install.md",),
        "Nothing is released yet: `spark-streams` on PyPI is not this project. In the folder that has your clone, run\n"
        "`pip install './spark-streams[…]'`.",
        "The newest release is {version}. To install a clone instead, name its folder: `./spark-streams[spark]`.",
    ),
    Place(
        ("docs/guide/*.md", "docs/reference/jobs.md", "examples/identity/*.py", "examples/notebooks/*.ipynb"),
        "pip install './spark-streams[",
        "pip install 'spark-streams[",
    ),
    Place(
        ("deploy/*.yaml", "docs/guide/on-a-schedule.md", "docs/guide/install.md"),
        "spark-streams:local",
        f"{_IMAGE}:{_VERSION}",
    ),
    Place(
        ("deploy/README.md",),
        "1. Build the image with `scripts/image`, and load it into your cluster. "
        "The manifests name it `spark-streams:local`.",
        "1. The manifests name the image of a release. `scripts/image` builds your own: then replace the name.",
    ),
    Place(("pyproject.toml",), f'Documentation = "{_HOME}/tree/main/docs"', f'Documentation = "{_SITE}"'),
    Place(("spark_streams/base/version.py",), 'RELEASED = ""', f'RELEASED = "{_VERSION}"'),
    Place(
        ("spark_streams/connector/watch/lineage/RstreamConsumerGroupInputDatasetFacet.json",),
        f"{_HOME}/raw/main/spark_streams/",
        f"{_HOME}/raw/v{_VERSION}/spark_streams/",
    ),
)


def newest_release(changelog: str) -> str:
    """Return the version of the newest entry with a date in the text of CHANGELOG.md; empty: there is none."""
    found = re.search(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    return found[1] if found else ""


def files_of(place: Place) -> list[Path]:
    """Return the files of a place that have one of its forms."""
    paths = [path for pattern in place.files for path in sorted(ROOT.glob(pattern))]
    return [path for path in paths if place.is_in(path.read_text(encoding="utf-8"))]


def stated(path: Path, version: str) -> str:
    """Return what a file says if `version` is the newest release."""
    text = path.read_text(encoding="utf-8")
    for place in PLACES:
        if any(path in ROOT.glob(pattern) for pattern in place.files):
            text = place.stated(text, version)
    return text


def main() -> None:
    version = newest_release((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    for path in sorted({path for place in PLACES for path in files_of(place)}):
        text = stated(path, version)
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
