"""`rstream export` and `rstream import`: files keep every byte, a broken line is named, and no file is half written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.base.ids import StreamId
from spark_streams.cli import main
from spark_streams.connector.errors import CopyFileError
from spark_streams.operations.transfer.entry_files import read_file, write_file
from spark_streams.operations.transfer.transferred import TransferEntry
from tests.operations.transfer.conftest import Rstream, RstreamJson
from tests.operations.transfer.test_copy import ODD, ROOT, add, content, kill_and_finish, numbered, start
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.in_turn

FORMS = ["orders.jsonl", "orders.ndjson", "orders.parquet"]
words = st.lists(st.binary(max_size=20) | st.text(max_size=20).map(str.encode), min_size=1, max_size=6)


@given(st.sampled_from(FORMS), st.lists(words, max_size=5))
def test_any_bytes_are_the_same_in_a_file(
    tmp_path_factory: pytest.TempPathFactory, form: str, fields: list[list[bytes]]
) -> None:
    file = str(tmp_path_factory.getbasetemp() / form)
    entries = [
        TransferEntry(StreamId(n, n), [word for pair in zip(row, row, strict=True) for word in pair])
        for n, row in enumerate(fields, 1)
    ]
    with write_file(file) as write:
        write(entries[:2])
        write(entries[2:])
    assert [entry for page in read_file(file) for entry in page] == entries


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_stream_is_imported_byte_for_byte(
    client: redis.Redis, rstream_json: RstreamJson, tmp_path: Path, form: str
) -> None:
    add(client, ODD)
    file = str(tmp_path / form)
    exported = rstream_json("export", "s", file)
    planned = rstream_json("import", file, "t")
    assert not client.exists("t")
    done = rstream_json("import", file, "t", "--yes")
    assert content(client, "t") == ODD
    assert (exported["checksum"], exported["sent"]) == (done["source"]["checksum"], len(ODD))
    assert done["source"] == done["target"] == planned["source"]
    again = rstream_json("import", file, "t", "--yes")
    assert (again["sent"], again["already"], again["target"]) == (0, len(ODD), done["target"])


def test_standard_output_and_input_are_json_lines(client: redis.Redis, server: Server, rstream: Rstream) -> None:
    add(client, ODD)
    exported = rstream("export", "s", "-")
    shown = rstream("show", "s", "--json")
    lines = exported.stdout.splitlines()
    assert [json.loads(line) for line in lines] == json.loads(shown.stdout)
    environment = {"RSTREAM_URL": server.url}
    ran = CliRunner().invoke(main, ["import", "-", "t", "--yes"], input="\n\n".join(lines), env=environment)
    assert (ran.exit_code, content(client, "t")) == (0, ODD)


def test_an_import_names_ids_of_the_future_and_reads_a_byte_order_mark(
    rstream_json: RstreamJson, tmp_path: Path
) -> None:
    file = tmp_path / "s.jsonl"
    for entry_id, noted in (("5-1", False), (f"{(int(time.time()) + 3600) * 1000}-0", True)):
        line = json.dumps({"id": entry_id, "fields": {"a": "1"}})
        file.write_text(line, encoding="utf-8-sig")
        done = rstream_json("import", str(file), "t", "--yes")
        assert (done["sent"], any("in the future" in note for note in done["notes"])) == (1, noted)


def test_an_export_and_an_import_select_entries(client: redis.Redis, rstream_json: RstreamJson, tmp_path: Path) -> None:
    numbered(client, 20)
    file = str(tmp_path / "s.parquet")
    assert rstream_json("export", "s", file, "--last", "10", "--where", "kind=even")["sent"] == 5
    assert rstream_json("import", file, "t", "--where", "kind=even", "--limit", "2", "--yes")["sent"] == 2
    assert [entry for entry, _ in content(client, "t")] == ["12-1", "14-1"]


def test_a_table_of_maps_is_imported(client: redis.Redis, rstream_json: RstreamJson, tmp_path: Path) -> None:
    """As the job archive writes it."""
    file = tmp_path / "part.parquet"
    fields = pa.array([[(b"\xff", b"1"), (b"a", b"2"), (b"a", b"3")]], pa.map_(pa.binary(), pa.binary()))
    pq.write_table(pa.table({"stream": ["orders"], "id": ["5-1"], "fields": fields}), file)
    rstream_json("import", str(file), "t", "--yes")
    assert content(client, "t") == [("5-1", [b"\xff", b"1", b"a", b"2", b"a", b"3"])]


GOOD = b'{"id":"1-1","fields":{"a":"1"}}\n'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"id":"2-1","fie', "Unterminated"),
        (b'{"id":"2-1","fields":{"a":"\xff"}}', "utf-8"),
        (b'{"id":"2-1","fields":{"a":"\\udc80"}}', "half of a surrogate pair"),
        (b'{"id":"2-1","fields":{"a":1}}', "must be a text"),
        (b'{"id":"2-1","fields":{"a":{"base64":"?"}}}', "base64"),
        (b'{"id":"2-1","fields":{"a":{"base64":"AA==","b":"c"}}}', "must be a text"),
        (b'{"id":"2-1","fields":{}}', "no field"),
        (b'{"id":"2-1","fields":[["a"]]}', "list of [name, value]"),
        (b'{"id":"2-1"}', "an entry is a JSON object"),
        (b'{"customer":"ann"}', "rstream add STREAM -"),
        (b'{"id":2,"fields":{"a":"b"}}', "an entry is a JSON object"),
        (b"[1]", "an entry is a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"id":"x","fields":{"a":"b"}}', "not an entry ID"),
        (b'{"id":"1-1","fields":{"a":"b"}}', "not above 1-1"),
        (b'{"id":"0-0","fields":{"a":"b"}}', "not above 1-1"),
    ],
)
def test_a_broken_line_is_named_and_the_entries_before_it_may_be_continued(
    client: redis.Redis, rstream: Rstream, tmp_path: Path, line: bytes, why: str
) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(GOOD + b"\n" + line + b"\n")
    ran = rstream("import", str(file), "t", "--yes")
    assert (ran.exit_code, "[RSTREAM_COPY_FILE] line 3 of" in ran.stderr, why in ran.stderr) == (1, True, True), (
        ran.stderr
    )
    file.write_bytes(GOOD + b'{"id":"2-1","fields":{"a":"2","a":"3"}}')
    assert rstream("import", str(file), "t", "--yes").exit_code == 0
    assert content(client, "t") == [("1-1", [b"a", b"1"]), ("2-1", [b"a", b"2", b"a", b"3"])]


def test_broken_tables_are_named(tmp_path: Path) -> None:
    file = tmp_path / "s.parquet"
    for columns, why in (
        ({"id": ["1-1"], "fields": [{"a": "b"}]}, "column 'fields' has the type struct"),
        ({"id": ["1-1"]}, "no column 'fields'"),
        ({"id": ["1-1", None], "fields": pa.array([[(b"a", b"b")]] * 2, pa.map_(pa.binary(), pa.binary()))}, "row 2"),
        ({"id": ["1-1"], "fields": pa.array([None], pa.map_(pa.binary(), pa.binary()))}, "row 1"),
    ):
        pq.write_table(pa.table(columns), file)
        with pytest.raises(CopyFileError, match=why):
            list(read_file(str(file)))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CopyFileError, match="cannot be read"):
        list(read_file(str(file)))
    with pytest.raises(CopyFileError, match="cannot be read"):
        list(read_file(str(tmp_path / "missing.parquet")))


def test_names_of_strangers_in_a_file_never_reach_the_terminal_raw(rstream: Rstream, tmp_path: Path) -> None:
    file = tmp_path / "\x1b[2J.jsonl"
    file.write_bytes(b'{"id":"\x1b[2J\xe2\x80\xae","fields":{"a":"b"}}')
    ran = rstream("import", str(file), "t")
    assert ran.exit_code == 1
    assert (ran.stdout + ran.stderr).replace("\n", "").isprintable()


@pytest.mark.parametrize("form", FORMS[1:])
def test_an_export_that_is_killed_leaves_the_file_unchanged(
    client: redis.Redis, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    numbered(client, 20_000)
    (tmp_path / "slowly.py").write_text("import time\ndef same(entry):\n    time.sleep(0.0005)\n    return entry.pairs")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    file = tmp_path / form
    file.write_text("the file before")
    for _ in range(3):
        run = start("export", "s", str(file), "--url", server.url, "--transform", "slowly:same")
        until(
            lambda: any(part.stat().st_size > 1_000 for part in tmp_path.glob("*.partial")),
            "nothing is written",
            60,
            interval=0.001,
        )
        run.kill()
        run.communicate()
        assert run.returncode == -signal.SIGKILL
        assert file.read_text() == "the file before"
        for part in tmp_path.glob(".*.partial"):
            part.unlink()
    with start("export", "s", str(file), "--url", server.url) as run:
        run.communicate()
    assert sum(map(len, read_file(str(file)))) == 20_000


def test_an_export_that_fails_leaves_no_file(client: redis.Redis, rstream: Rstream, tmp_path: Path) -> None:
    numbered(client, 3)
    assert rstream("export", "s", str(tmp_path / "s.jsonl"), "--transform", "json:dumps").exit_code == 1
    assert list(tmp_path.iterdir()) == []
    ran = rstream("export", "s", str(tmp_path / "missing" / "s.jsonl"))
    assert (ran.exit_code, "[RSTREAM_COPY_FILE]" in ran.stderr) == (1, True)


def test_an_import_that_is_killed_three_times_continues(
    client: redis.Redis, server: Server, rstream_json: RstreamJson, tmp_path: Path
) -> None:
    numbered(client, 20_000)
    file = str(tmp_path / "s.parquet")
    rstream_json("export", "s", file)
    words = ["import", file, "t", "--url", server.url, "--rate", "10000", "--json", "--yes"]
    report = kill_and_finish(words, lambda: int(client.xlen("t")), 20_000)
    assert report["source"] == report["target"]
    assert content(client, "t") == content(client)


def test_a_sample_of_a_server_is_brought_into_the_bundled_engine(
    client: redis.Redis, server: Server, tmp_path: Path
) -> None:
    """By one command, which starts the engine; the dry run does not. The login of the environment is the source's."""
    numbered(client, 100)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "spark_streams.cli"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], cwd=ROOT, capture_output=True, text=True, check=False, env=environment
        )

    copy = ["copy", "s", "orders", "--url", server.url, "--to-url", "embedded:?idle=60", "--last", "10"]
    planned = run(*copy)
    assert (planned.returncode, "would" in planned.stdout or "dry run" in planned.stdout) == (0, True), planned.stderr
    assert run("streams", "--url", "embedded:?idle=60").returncode == 1
    done = run(*copy, "--yes")
    assert (done.returncode, "copied 10 entries" in done.stdout) == (0, True), done.stderr
    shown = json.loads(run("show", "orders", "--url", "embedded:?idle=60", "--json").stdout)
    assert [entry["id"] for entry in shown] == [f"{n}-1" for n in range(91, 101)]
