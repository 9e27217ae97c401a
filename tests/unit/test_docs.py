"""The docs say what the code says."""

from pathlib import Path

from spark_streams.engine.commands import COMMANDS
from spark_streams.options.table import ACCESS, BATCH_SOURCE, SINK, SOURCE, but_access, table_of
from spark_streams.source.group import remedies

DOCS = Path(__file__).resolve().parents[2] / "docs"
OPTIONS = (DOCS / "options.md").read_text(encoding="utf-8")


def test_the_option_tables_are_the_code_s_own() -> None:
    for table in (SOURCE, BATCH_SOURCE, SINK):
        assert table_of(but_access(table)) in OPTIONS
    assert table_of(ACCESS[1:]) in OPTIONS


def test_the_page_about_data_loss_has_the_table_of_remedies() -> None:
    assert remedies.table() in (DOCS / "data-loss.md").read_text(encoding="utf-8")


def test_the_page_about_the_engine_lists_its_commands() -> None:
    page = (DOCS / "engine.md").read_text(encoding="utf-8")
    rows = page.partition("## Commands\n")[2].partition("\n\nAny other")[0].splitlines()
    listed = [name for row in rows[3:] for name in row.split("|")[2].split()]
    assert sorted(listed) == sorted(name.decode().upper() for name in COMMANDS)
