"""`rstream import` reads files of strangers: a small file never takes much memory, and what is odd is named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from spark_streams.connector.errors import CopyFileError
from spark_streams.operations.transfer import entry_files
from spark_streams.operations.transfer.transferred import TransferEntry
from tests.operations.transfer.conftest import Rstream
from tests.operations.transfer.test_copy import ROOT, content

pytestmark = pytest.mark.in_turn

LARGE = 100 << 20  # bytes
PAIRS = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))
SWAPPED = pa.list_(pa.struct([("value", pa.binary()), ("name", pa.binary())]))
MAPS = pa.map_(pa.binary(), pa.binary())
PAIR = [[(b"a", b"b")]]


def read(file: Path) -> list[TransferEntry]:
    return [entry for page in entry_files.read_file(str(file)) for entry in page]


def shared(values: pa.Array, rows: int, per_row: int = 1) -> pa.Table:
    """Return rows whose fields all have the one value, which a file stores once."""
    count = rows * per_row
    column = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), values)
    names = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([b"a"]))
    pairs = pa.StructArray.from_arrays([names, column], ["name", "value"])
    offsets = pa.array(range(0, count + 1, per_row), pa.int32())
    ids = [f"{n}-0" for n in range(1, rows + 1)]
    return pa.table({"id": ids, "fields": pa.ListArray.from_arrays(offsets, pairs)})


def rows_that_share_a_value(file: Path) -> None:
    pq.write_table(shared(pa.array([b"x" * (LARGE // 250)]), 1_000), file, compression="zstd", store_schema=False)


def one_value(file: Path) -> None:
    table = pa.table({"id": ["1-0"], "fields": pa.array([[{"name": b"a", "value": bytes(LARGE)}]], PAIRS)})
    pq.write_table(table, file, compression="zstd", use_dictionary=False, write_statistics=False)


def fields_of_one_row(file: Path) -> None:
    pq.write_table(shared(pa.array([b"x"]), 1, LARGE // 10), file, compression="zstd", store_schema=False)


def one_page_of_values(file: Path) -> None:
    values = pa.array([[{"name": b"a", "value": bytes(LARGE // 50)}]] * 200, PAIRS)
    table = pa.table({"id": [f"{n}-0" for n in range(1, 201)], "fields": values})
    pq.write_table(table, file, compression="zstd", use_dictionary=False, write_statistics=False)


def one_id(file: Path) -> None:
    table = pa.table({"id": ["9" * LARGE], "fields": pa.array(PAIR, MAPS)})
    pq.write_table(table, file, compression="zstd", use_dictionary=False, write_statistics=False)


def parts_of_one_line(part: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        parts = b",".join([part] * 3_000_000)
        file.write_bytes(b'{"id":"1-1","x":[' + parts + b'],"fields":{"a":"b"}}\n')

    return write


_READ = """
import resource, sys
from spark_streams.connector.errors import CopyFileError
from spark_streams.operations.transfer import entry_files, parquet
parquet.MOST_MEMORY = entry_files.MOST_MEMORY = int(sys.argv[2]) << 20


def peak():  # getrusage has that of the process that started this one
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


limits, before = resource.getrlimit(resource.RLIMIT_AS), peak()
try:
    print(sum(map(len, entry_files.read_file(sys.argv[1]))), "entries")
except CopyFileError as error:
    print(error.message)
assert resource.getrlimit(resource.RLIMIT_AS) == limits
print((peak() - before) // 1024)
"""


def measured(file: Path, limit: int) -> tuple[str, int]:
    """Return the result of reading a file in a process that has read nothing before, and the MB that it took."""
    command = [sys.executable, "-c", _READ, str(file), str(limit)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result, peak = ran.stdout.splitlines()
    return result, int(peak)


@pytest.mark.parametrize("limit", [64, 512])
@pytest.mark.parametrize(
    ("write", "ending", "where"),
    [
        (one_value, "parquet", "after row 0 it"),
        (fields_of_one_row, "parquet", "after row 0 it"),
        (one_page_of_values, "parquet", "after row 0 it"),
        (one_id, "parquet", "after row 0 it"),
        (parts_of_one_line(b"{}"), "jsonl", "line 1 of "),
        (parts_of_one_line(b"[]"), "jsonl", "line 1 of "),
        (parts_of_one_line(b'{"":""}'), "jsonl", "line 1 of "),
    ],
)
def test_what_stands_for_much_more_than_the_file_takes_a_limited_amount_of_memory(
    tmp_path: Path, write: Callable[[Path], None], ending: str, where: str, limit: int
) -> None:
    """With the limit of the product, the smaller ones are read. The limit of the process is as before."""
    file = tmp_path / f"bomb.{ending}"
    write(file)
    result, peak = measured(file, limit)
    assert peak < limit + 48, result
    assert str(file) in result or (limit == 512 and "entries" in result)
    if limit == 64:
        assert f"needs more than {limit} MiB of memory" in result
        assert where in result


def test_a_value_that_many_rows_share_is_read_without_the_memory_of_all(tmp_path: Path) -> None:
    file = tmp_path / "shared.parquet"
    rows_that_share_a_value(file)
    assert file.stat().st_size < 10_000
    result, peak = measured(file, 256)
    assert (result, peak < 128) == ("1000 entries", True)
    assert all(len(page) < 30 for page in entry_files.read_file(str(file)))


def test_a_line_has_a_longest_length(
    client: redis.Redis, rstream: Rstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines before it are imported."""
    monkeypatch.setattr(entry_files, "LONGEST", 1_000)
    file = tmp_path / "s.jsonl"
    line = b'{"id":"1-1","fields":{"a":"%s"}}\n'
    file.write_bytes(line % (b"x" * (1_000 - len(line % b""))))
    assert rstream("import", str(file), "t", "--yes").exit_code == 0
    file.write_bytes(file.read_bytes() + (line % (b"x" * 971)).replace(b"1-1", b"2-1"))
    ran = rstream("import", str(file), "t", "--yes")
    assert (ran.exit_code, "line 2 of" in ran.stderr, "longer than 1,000 bytes" in ran.stderr) == (1, True, True)
    assert [entry for entry, _ in content(client, "t")] == ["1-1"]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({}, "it has no column 'id' (its columns: none)"),
        ({"ID": ["1-1"], "fields": pa.array(PAIR, MAPS)}, "it has no column 'id' (its columns: 'ID', 'fields')"),
        ({"id": ["1-1"], "field": ["b"]}, "it has no column 'fields' (its columns: 'id', 'field')"),
        ({"id": pa.nulls(1), "fields": pa.array(PAIR, MAPS)}, "its column 'id' has the type null; write it as string"),
        ({"id": pa.array([b"1-1"]), "fields": pa.array(PAIR, MAPS)}, "its column 'id' has the type binary"),
        ({"id": [1], "fields": pa.array(PAIR, MAPS)}, "its column 'id' has the type int64"),
        ({"id": [["1-1"]], "fields": pa.array(PAIR, MAPS)}, "its column 'id' has the type list<"),
        ({"id": [{"a": 1}], "fields": pa.array(PAIR, MAPS)}, "its column 'id' has the type struct<"),
        ({"id": pa.array(["1-1"]).dictionary_encode(), "fields": pa.array(PAIR, MAPS)}, "has the type dictionary<"),
        ({"id": ["1-1"], "fields": pa.nulls(1)}, "its column 'fields' has the type null; write it as list<"),
        ({"id": ["1-1"], "fields": [{"a": "b"}]}, "its column 'fields' has the type struct<a: string>"),
        ({"id": ["1-1"], "fields": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))}, "map<string, string"),
        ({"id": ["1-1"], "fields": ["a=b"]}, "its column 'fields' has the type string"),
        ({"id": ["1-1"], "fields": [[b"a", b"b"]]}, "its column 'fields' has the type list<"),
        ({"id": ["1-1"], "fields": pa.array([[("a", "b")]], SWAPPED)}, "value: binary, name: binary"),
        ({"id": ["1-1"], "fields": [[{"name": b"a", "value": b"b", "more": b"c"}]]}, "more: binary"),
        (
            {"id": ["1-1"], "fields": pa.array([[[{"name": b"a", "value": b"b"}]]], pa.list_(PAIRS))},
            "its column 'fields' has the type list<",
        ),
    ],
)
def test_an_odd_column_is_named_with_what_to_do(
    server: object, rstream: Rstream, tmp_path: Path, columns: dict[str, object], why: str
) -> None:
    file = tmp_path / "s.parquet"
    pq.write_table(pa.table(columns), file)
    with pytest.raises(CopyFileError) as caught:
        read(file)
    message = caught.value.message
    assert message.startswith(f"file {str(file)!r} cannot be imported: ")
    assert why in message
    assert message.endswith("and run the command again")
    assert len(message) < 700 + len(str(file))
    ran = rstream("import", str(file), "t")
    assert (ran.exit_code, "[RSTREAM_COPY_FILE]" in ran.stderr, "Traceback" in ran.stderr) == (1, True, False)


def test_many_columns_and_columns_of_the_same_name_are_named(tmp_path: Path) -> None:
    file = tmp_path / "s.parquet"
    pq.write_table(pa.table({f"{'c' * 1_000}{n}": [1] for n in range(2_000)}), file)
    with pytest.raises(CopyFileError, match=r"no column 'id' .* and 1,990 more\)") as caught:
        read(file)
    assert len(caught.value.message) < 4_000
    fields = pa.array(PAIR, MAPS)
    pq.write_table(pa.table([["1-1"], ["2-1"], fields], names=["id", "id", "fields"]), file)
    with pytest.raises(CopyFileError, match="it has 2 columns 'id'; leave one of them"):
        read(file)
    pq.write_table(pa.table([["1-1"], fields, fields], names=["id", "fields", "fields"]), file)
    with pytest.raises(CopyFileError, match="it has 2 columns 'fields'"):
        read(file)


def test_other_columns_may_have_any_type_and_ids_may_be_large_strings(tmp_path: Path) -> None:
    file = tmp_path / "s.parquet"
    fields = pa.array([PAIR[0], []] * 2, MAPS)[::2]
    names, ids = ["id", "x", "x", "fields", "ID"], pa.array(["1-1", "2-1"], pa.large_string())
    pq.write_table(pa.table([ids, pa.nulls(2), [[{"a": [1]}], None], fields, [1, 2]], names=names), file)
    assert [entry.fields for entry in read(file)] == [[b"a", b"b"]] * 2


@pytest.mark.parametrize("kind", [PAIRS, MAPS])
def test_nulls_and_bytes_that_are_no_id_are_named_by_their_row(tmp_path: Path, kind: pa.DataType) -> None:
    file = tmp_path / "s.parquet"
    good = [(b"a", b"b")] if kind == MAPS else [{"name": b"a", "value": b"b"}]
    no_value = [(b"a", None)] if kind == MAPS else [{"name": b"a", "value": None}]
    odd_rows: list[tuple[str | None, object, str]]
    odd_rows = [("2-1", None, "null"), ("2-1", no_value, "null"), (None, good, "null"), ("2-1", [], "no field")]
    odd_rows += [] if kind == MAPS else [("2-1", [None], "null")]
    for entry_id, fields, why in odd_rows:
        pq.write_table(pa.table({"id": ["1-1", entry_id], "fields": pa.array([good, fields], kind)}), file)
        with pytest.raises(CopyFileError, match=f"row 2 of .* is not an entry of a stream: it has .*{why}"):
            read(file)
    not_text = pa.array([b"1-1", b"\xff\xfe"]).view(pa.string())
    pq.write_table(pa.table({"id": not_text, "fields": pa.array([good] * 2, kind)}), file)
    with pytest.raises(CopyFileError, match="row 2 of .*not an entry ID"):
        read(file)


def test_rows_of_every_length_are_read_as_they_were_written(tmp_path: Path) -> None:
    """In batches and pages of several sizes, with values that repeat and that do not."""
    file = tmp_path / "s.parquet"
    rows = [[(b"n", b"%d" % n), (b"same", b"s" * (n % 7)), *[(b"x", b"y" * n)] * (n % 3)] for n in range(1, 4_000)]
    ids = [f"{n}-{n % 2}" for n in range(1, 4_000)]
    pq.write_table(pa.table({"id": ids, "fields": pa.array(rows, MAPS)}), file, row_group_size=1_700)
    assert [(str(entry.id), entry.fields) for entry in read(file)] == [
        (entry_id, [word for pair in row for word in pair]) for entry_id, row in zip(ids, rows, strict=True)
    ]


@pytest.mark.parametrize(
    "line", [b'{"id":"1-1","id":"2-1","fields":{"a":"b"}}', b'{"id":"1-1","fields":{},"fields":{"a":"b"}}']
)
def test_a_member_that_occurs_twice_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(line)
    with pytest.raises(CopyFileError, match="line 1 of .*occurs twice"):
        read(file)
