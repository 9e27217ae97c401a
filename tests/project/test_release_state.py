"""CHANGELOG.md says whether there is a release, and every other file says the same: tools/release_state.py."""

from __future__ import annotations

import re
import subprocess
from itertools import chain
from pathlib import Path

import pytest
import yaml

from spark_streams.base.version import RELEASED, __version__
from tools.release_state import PLACES, ROOT, Place, files_of, newest_release, stated

CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
RELEASE = newest_release(CHANGELOG)
FILES = sorted(set(chain.from_iterable(map(files_of, PLACES))))

# What leads to nothing before the first release, and which files may name it all the same: the workflow that makes the
# release, the table of both forms, and this test. README.md names it to say that it is not there.
UNRELEASED = re.compile(
    r"shields\.io|badge\.svg|colab\.research|mybinder|ghcr\.io|spark-streams\.github\.io|readthedocs\.io/projects/spark|"
    r"pip install (?:-U )?spark-streams\b|/releases/tag/|/(?:tree|raw|blob)/v\d"
)
MAY_NAME_IT = {".github/workflows/release.yml", "tools/release_state.py", "tests/project/test_release_state.py"}
MAY_NAME_IT |= {
    "mkdocs.yml",
    "tests/project/test_build.py",
    "tests/project/test_deployment.py",
}  # what will be, and where


@pytest.mark.parametrize(
    ("changelog", "version"),
    [
        ("## [0.1.0] - unreleased\n", ""),
        ("## [0.1.0] - 2026-12-01\n", "0.1.0"),
        ("## [0.2.0] - unreleased\n\n## [0.1.0] - 2026-12-01\n", "0.1.0"),
        ("## [0.2.0] - 2027-02-01\n\n## [0.1.0] - 2026-12-01\n", "0.2.0"),
    ],
)
def test_a_release_is_an_entry_with_a_date(changelog: str, version: str) -> None:
    assert newest_release(changelog) == version


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_says_what_the_changelog_says(path: Path) -> None:
    assert stated(path, RELEASE) == path.read_text(encoding="utf-8"), "run: python -m tools.release_state"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.unreleased[:40])
def test_each_place_is_somewhere(place: Place) -> None:
    assert files_of(place), f"no file says {place.unreleased!r}"


def test_both_states_can_be_written_and_taken_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From nothing to 0.1.0, to 0.2.0 and back: no word of another state is left."""
    for path in FILES:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(stated(path, ""), encoding="utf-8")
    before = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file()}
    assert not [path for path, text in before.items() if "README" not in path.name and UNRELEASED.search(text)]
    monkeypatch.setattr("tools.release_state.ROOT", tmp_path)
    for version in ("0.1.0", "0.2.0"):
        for path in before:
            path.write_text(stated(path, version), encoding="utf-8")
            text = path.read_text(encoding="utf-8")
            assert "Nothing is released" not in text
            assert not re.search(r"'\./spark-streams\[(?!spark\]`)|spark-streams:local", text), path
        assert f'RELEASED = "{version}"' in (tmp_path / "spark_streams/base/version.py").read_text(encoding="utf-8")
        assert f"ghcr.io/spark-streams/spark-streams:{version}\n" in (tmp_path / "deploy/query.yaml").read_text("utf-8")
        assert "pip install 'spark-streams[spark]'" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert {path: stated(path, "") for path in before} == before


def test_before_the_first_release_no_file_names_what_a_release_makes() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if RELEASE or not listed:
        pytest.skip("there is a release, or this is no clone")
    found = []
    for name in listed:
        path = ROOT / name
        if name in MAY_NAME_IT or path.suffix in (".png", ".bin") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if name == "README.md":
            text = text.replace(PLACES[0].unreleased, "")
        found += [f"{name}: {match[0]}" for match in UNRELEASED.finditer(text)]
    assert found == []


def test_the_readme_says_it_first() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["# spark-streams", ""]
    assert lines[2].startswith("[![PyPI]" if RELEASE else "**Nothing is released yet.**")


def test_the_package_says_it_to_its_messages() -> None:
    assert RELEASE == RELEASED
    heading = re.search(rf"(?m)^## \[{re.escape(__version__)}\] - (\S+)$", CHANGELOG)
    assert heading is not None
    assert (heading[1] == "unreleased") == (__version__ != RELEASE)


def test_a_version_has_a_link_to_its_tag_if_it_is_released() -> None:
    dated = re.findall(r"(?m)^## \[(\S+)\] - \d{4}-\d\d-\d\d$", CHANGELOG)
    assert re.findall(r"(?m)^\[(\S+)\]: \S+/releases/tag/v\1$", CHANGELOG) == dated


def test_no_site_is_published_before_the_first_release() -> None:
    docs = yaml.safe_load((ROOT / ".github/workflows/docs.yml").read_text(encoding="utf-8"))["jobs"]
    assert docs["publish"]["if"] == "needs.build.outputs.released == 'true'"
    assert docs["build"]["outputs"] == {"released": "${{ steps.state.outputs.released }}"}


@pytest.mark.parametrize(("heading", "is_released"), [("unreleased", False), ("2026-12-01", True)])
def test_the_workflows_read_the_heading(tmp_path: Path, heading: str, is_released: bool) -> None:
    """A tag without a date is refused, and no site is published: by the workflows' own commands, run here."""
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [0.1.0] - {heading}\n")

    def run(workflow: str) -> tuple[int, str]:
        steps = yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text(encoding="utf-8"))["jobs"]["build"][
            "steps"
        ]
        [command] = [step["run"] for step in steps if "CHANGELOG.md" in step.get("run", "")]
        environment = {"PATH": "/usr/bin:/bin", "GITHUB_REF_NAME": "v0.1.0", "GITHUB_OUTPUT": str(tmp_path / "output")}
        code = subprocess.run(["bash", "-ec", command], cwd=tmp_path, env=environment, check=False).returncode
        output = tmp_path / "output"
        return code, output.read_text() if output.exists() else ""

    assert (run("release.yml")[0] == 0) == is_released
    assert run("docs.yml") == (0, "released=true\n" if is_released else "released=false\n")
