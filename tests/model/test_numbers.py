"""Numbers that somebody else wrote are read in one place, with a bound."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_streams
from spark_streams.model.numbers import parse_number

ROOT = Path(spark_streams.__file__).parent
# Files that call `int` or `float`, and with what. A number of an entry, a key or a name is read by `parse_number`.
ARRAYS = "a number that numpy or Arrow counted"
OWN = "what this program wrote itself: a checkpoint, a request, a local property of Spark"
SERVER = "the server's own protocol, which no other client can write"
OPTIONS = "what the user of this machine has set, checked by a pattern before"
ALLOWED = {
    "model/ids.py": "fewer than twenty digits, looked at before",
    "model/numbers.py": "bounded here",
    "model/times.py": OPTIONS,
    "options/values.py": OPTIONS,
    "spark/installation.py": OPTIONS,
    "schemas/avro_columns.py": OPTIONS,
    "schemas/fit.py": "numbers that a decoder has made, bounded before",
    "schemas/avro_writer.py": "numbers of Spark's rows",
    "schemas/json_schema/writer.py": "numbers of Spark's rows",
    "schemas/json_schema/text.py": "bounded before",
    "schemas/json_schema/numbers.py": "numbers that the parser has bounded before",
    "schemas/json_schema/patterns.py": "at most six hexadecimal digits, by a pattern",
    "schemas/avro_logical.py": "a number that the decoder has made",
    "schemas/apart/server.py": "what the kernel says of this process",
    "wire/connection/full_server.py": SERVER,
    "schemas/protobuf_writer.py": "numbers of Spark's rows",
    "jobs/file_log.py": "what Spark has written into its checkpoint",
    "wire/address/server_url.py": OPTIONS,
    "wire/address/address.py": OPTIONS,
    "commands/look/tail.py": OPTIONS,
    "monitor/exporter/stream_filter.py": OPTIONS,
    "monitor/exporter/snapshot_cache.py": OPTIONS,
    "groups/target.py": OPTIONS,
    "source/offset.py": OWN,
    "source/range.py": OWN,
    "spark/task_context.py": OWN,
    "transfer/memory.py": "what the kernel says of this process",
    "sink/encode/limits.py": OWN,
    "source/pending_list.py": SERVER,
    "sink/trim/trim.py": SERVER,
    "wire/topology/cluster.py": SERVER,
    "wire/limits.py": SERVER,
    "wire/replies/replies.py": SERVER,
    "wire/replies/released.py": SERVER,
    "wire/topology/sentinel.py": SERVER,
    "wire/entries/headers.py": SERVER,
    "source/batch/infer_schema.py": "at most nineteen digits, by a pattern; a float of any length is a float",
    "console/access.py": "a number that the console itself has signed",
    "console/json_filter.py": "at most nine digits, by a pattern",
    "console/login/users.py": "at most two digits, by a pattern",
    "source/rows/text_forms.py": "at most six digits, by a pattern",
    "journey/batches.py": OWN,
    "journey/rows.py": OWN,
    "journey/tables.py": "at most twenty digits, by a pattern",
    "monitor/margin/rule.py": "a number that was computed here",
    "verify/driver.py": "what the kernel says of processes",
    "verify/history.py": "IDs of entries that the server has given, or that StreamId has parsed before",
}
for _path in (
    *("source/rows/returned_page.py", "shards/of_keys.py", "deadletter/kind_counts.py", "deadletter/redrive/mover.py"),
    *("deadletter/page_reader.py",),
    *("source/rows/nested_json.py", "source/task/fetcher.py", "source/rows/columns.py", "source/rows/malformed.py"),
    *(
        "deadletter/redrive/redrive_plan.py",
        "monitor/terminal/units.py",
        "monitor/group_metrics.py",
    ),
    *("monitor/watch/prometheus.py", "wire/entries/encode.py", "wire/entries/lines.py", "wire/entries/pending_page.py"),
    *("wire/entries/vector_page.py", "wire/entries/walk.py"),
    *("sink/encode/chunks.py", "sink/encode/fingerprint.py", "sink/ledger/ledger_view.py", "sink/send/exactly_once.py"),
    *(
        "sink/trim/entry_sizes.py",
        "source/archive/rows.py",
        "source/archive/batch_limit.py",
        "source/archive/history.py",
        "source/archive/highest.py",
        "transfer/parquet.py",
    ),
    *("sink/encode/row_errors.py", "source/pending/claim.py"),
):
    ALLOWED[_path] = ARRAYS


@pytest.mark.in_turn
def test_no_other_file_reads_a_number_by_itself() -> None:
    """The engine reads its own protocol (tests/engine/test_hostile.py)."""
    calling = set()
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
        if any(isinstance(one.func, ast.Name) and one.func.id in ("int", "float") for one in calls):
            calling.add(name)
    calling = {name for name in calling if not name.startswith("engine/")}
    assert calling - ALLOWED.keys() == set(), "use spark_streams.model.numbers.parse_number"
    assert ALLOWED.keys() - calling == set(), "no such call is left"


@given(st.text(max_size=40) | st.binary(max_size=40), st.integers(0, 2**64 - 1))
def test_any_text_is_a_number_within_bounds_or_none(text: str | bytes, most: int) -> None:
    number = parse_number(text, most)
    assert number is None or (0 <= number <= most and (text.isascii() and int(text) == number))


@pytest.mark.parametrize(
    "text", ["9" * 5_000, "²", "٣", "1_0", " 1", "+1", "-1", "", "1\n", "18446744073709551616", b"\xff"]
)
def test_what_is_no_bounded_number_is_none(text: str | bytes) -> None:
    assert parse_number(text) is None


def test_a_sign_is_read_if_it_is_asked_for() -> None:
    assert [parse_number(text, minimum=-1) for text in ("-1", b"-1", "-2", "--1", "1", "-²")] == [
        -1,
        -1,
        None,
        None,
        1,
        None,
    ]
    assert parse_number("18446744073709551615") == 2**64 - 1
