"""The docs say what the code says."""

from pathlib import Path

from spark_streams.options import BATCH_SOURCE, SINK, SOURCE, table_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
OPTIONS = (DOCS / "options.md").read_text(encoding="utf-8")


def test_the_option_tables_are_the_code_s_own() -> None:
    assert table_of(SOURCE) in OPTIONS
    assert table_of(BATCH_SOURCE) in OPTIONS
    assert table_of(SINK) in OPTIONS
