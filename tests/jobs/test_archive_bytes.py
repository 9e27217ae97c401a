"""The archive keeps every byte of what it trims, also with fields as text; its form is the one that tables have."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_streams.jobs.parts.archiving import HEX
from tests.jobs.work import CONF, Work, call
from tools.servers.server import Server

ENTRIES: list[list[bytes]] = [
    [b"n", b"1", b"text", "Ærø 🦊\r\n".encode()],
    [b"n", b"\xff\xfe", b"", b""],
    [b"\xc3", b"name", b"n", b"2", b"n", b"3"],  # a name that is not UTF-8
    [b"n", b"1", b"n", b"2"],  # a name twice
    [HEX.encode(), b"6E 31"],  # looks like the form itself
    [b"n", b"\xed\xa0\x80", b"m", b"\xef\xbf\xbd"],  # a surrogate; U+FFFD as it is
]


def kept_bytes(fields: list[tuple[str, str]]) -> list[bytes]:
    """An entry's names and values, as docs/reference/jobs.md says."""
    if fields[0][0] == HEX:
        return [bytes.fromhex(word) for word in fields[0][1].split(" ")]
    return [word.encode() for field in fields for word in field]


@pytest.mark.spark
@pytest.mark.in_turn
def test_nothing_is_trimmed_that_is_not_kept_byte_for_byte(server: Server, tmp_path: Path) -> None:
    """Behind what an earlier version has written, whose columns stay."""
    work = Work(tmp_path, server)
    old = tmp_path / "archive" / "date=2020-01-01" / "batch=aaaa-0"
    old.mkdir(parents=True)
    schema = pa.schema([
        ("stream", pa.string()), ("id", pa.string()), ("timestamp", pa.timestamp("us", "UTC")),
        ("fields", pa.map_(pa.string(), pa.string())),
    ])  # fmt: skip
    before = {"stream": "flights", "id": "1-1", "timestamp": None, "fields": [("n", "old")]}
    pq.write_table(pa.Table.from_pylist([before], schema), old / "one.parquet")
    with server.client() as client:
        client.flushall()
        for entry in ENTRIES:
            client.execute_command("XADD", "flights", "*", *entry)
        with work:
            work.start(work.arguments("archive")).finish()
        assert client.xlen("flights") == 0
    files = sorted((tmp_path / "archive").rglob("*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    types = [table.schema.field("fields").type for table in tables]
    assert {(one.key_type, one.item_type) for one in types} == {(pa.string(), pa.string())}
    rows = sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["id"])
    assert [row["fields"] for row in rows[:2]] == [[("n", "old")], [("n", "1"), ("text", "Ærø 🦊\r\n")]]
    assert [kept_bytes(row["fields"]) for row in rows[1:]] == ENTRIES


def test_json_with_binary_fields_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's writer of JSON replaces names that are binary."""
    settings = ("--set", "table.format=json", "--set", "table.fields=binary")
    assert (
        call(
            monkeypatch,
            "archive",
            "--config",
            str(CONF / "archive.toml"),
            "--check",
            *settings,
        )
        == 2
    )
    said = capsys.readouterr().err
    assert said.startswith('archive: [RSTREAM_CONFIG] table.format "json" cannot hold names of fields as bytes: ')
