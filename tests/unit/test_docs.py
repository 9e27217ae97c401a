"""The docs say what the code says."""

from pathlib import Path

from spark_streams.option_tables import ACCESS, BATCH_SOURCE, SINK, SOURCE, but_access, table_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
OPTIONS = (DOCS / "options.md").read_text(encoding="utf-8")


def test_the_option_tables_are_the_code_s_own() -> None:
    for table in (SOURCE, BATCH_SOURCE, SINK):
        assert table_of(but_access(table)) in OPTIONS
    assert table_of(ACCESS[1:]) in OPTIONS
