"""CHANGELOG.md: the entry of this version is there, short, and in the sections of Keep a Changelog."""

from __future__ import annotations

import re
from pathlib import Path

import spark_streams

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
NEWEST = re.split(r"(?m)^(?=## )", TEXT)[1]


def test_the_newest_entry_is_of_this_version() -> None:
    heading = NEWEST.splitlines()[0]
    assert re.fullmatch(rf"## \[{re.escape(spark_streams.__version__)}\] - (unreleased|\d{{4}}-\d\d-\d\d)", heading)


def test_an_entry_is_short_and_has_the_sections_of_keep_a_changelog() -> None:
    assert len(NEWEST.splitlines()) < 60
    sections = re.findall(r"(?m)^### (.*)$", NEWEST)
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    assert sections
    assert sections == [name for name in order if name in sections]


def test_every_file_that_the_changelog_links_to_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", TEXT) if "://" not in link]
    assert links
    assert all((ROOT / link).is_file() for link in links), links
