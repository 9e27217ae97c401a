"""The docs say what the code says, and name nothing that is not there."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from spark_streams.engine.commands import COMMANDS
from spark_streams.options.table import ACCESS, BATCH_SOURCE, SINK, SOURCE, but_access, table_of
from spark_streams.source.group import remedies

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGE_NAME = re.compile(r"\bdocs/[\w/-]+\.md\b")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page, as GitHub and MkDocs make them of its headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_to_a_page_and_a_heading(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z+]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_that_code_and_scripts_name_is_there() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    missing = []
    for name in listed:
        file = ROOT / name
        if file.suffix in (".md", ".py", ".sh", ".toml", ".yml", "") and file.is_file():
            for page in PAGE_NAME.findall(file.read_text(encoding="utf-8", errors="replace")):
                if not (ROOT / page).is_file():
                    missing.append(f"{name}: {page}")
    assert not missing


def test_the_option_tables_are_the_code_s_own() -> None:
    page = (REFERENCE / "options.md").read_text(encoding="utf-8")
    for table in (SOURCE, BATCH_SOURCE, SINK):
        assert table_of(but_access(table)) in page
    assert table_of(ACCESS[1:]) in page


def test_the_page_about_data_loss_has_the_table_of_remedies() -> None:
    assert remedies.table() in (REFERENCE / "data-loss.md").read_text(encoding="utf-8")


def test_the_page_about_the_engine_lists_its_commands() -> None:
    page = (DOCS / "engine.md").read_text(encoding="utf-8")
    rows = page.partition("## Commands\n")[2].partition("\n\nAny other")[0].splitlines()
    listed = [name for row in rows[3:] for name in row.split("|")[2].split()]
    assert sorted(listed) == sorted(name.decode().upper() for name in COMMANDS)
