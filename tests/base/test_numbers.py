"""Numbers that somebody else wrote are read in one place, with a bound."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_streams
from spark_streams.base.numbers import parse_number

ROOT = Path(spark_streams.__file__).parent
# Files that call `int` or `float`, and with what. A number of an entry, a key or a name is read by `parse_number`.
ARRAYS = "a number that numpy or Arrow counted"
OWN = "what this program wrote itself: a checkpoint, a request, a local property of Spark"
SERVER = "the server's own protocol, which no other client can write"
OPTIONS = "what the user of this machine has set, checked by a pattern before"
COMPUTED = "a number that was computed here"
ALLOWED = {
    "base/ids.py": "fewer than twenty digits, looked at before",
    "base/numbers.py": "bounded here",
    "base/given_text.py": OPTIONS,
    "connector/options/access_options.py": OPTIONS,
    "connector/options/parsers.py": OPTIONS,
    "connector/spark/installation.py": OPTIONS,
    "connector/schemas/schema_columns.py": OPTIONS,
    "connector/schemas/fit.py": "numbers that a decoder has made, bounded before",
    "connector/schemas/writers.py": "numbers of Spark's rows",
    "connector/schemas/json_schema.py": "bounded before: by the parser, or at most six hexadecimal digits by a pattern",
    "connector/schemas/avro.py": "a number that the decoder has made",
    "connector/schemas/decode_process.py": "what the kernel says of this process",
    "connector/wire/named_errors.py": SERVER,
    "jobs/parts/loading.py": "what Spark has written into its checkpoint",
    "connector/wire/server_url.py": OPTIONS,
    "connector/wire/address.py": OPTIONS,
    "operations/commands/read/show_entries.py": OPTIONS,
    "operations/monitor/snapshots.py": OPTIONS,
    "operations/groups/position.py": OPTIONS,
    "connector/source/offset.py": OWN,
    "connector/spark/worker.py": OWN,
    "connector/sink/row_errors.py": OWN,
    "operations/transfer/parquet.py": "what the kernel says of this process",
    "connector/source/pending_list.py": SERVER,
    "connector/sink/trim.py": SERVER,
    "connector/wire/cluster.py": SERVER,
    "connector/wire/connect.py": SERVER,
    "connector/wire/replies.py": SERVER,
    "connector/wire/xinfo.py": SERVER,
    "connector/wire/sentinel.py": SERVER,
    "connector/wire/walk.py": SERVER,
    "connector/source/infer_schema.py": "at most nineteen digits, by a pattern; a float of any length is a float",
    "operations/console/entry_search.py": "at most nine digits, by a pattern",
    "connector/source/rows/text_forms.py": "at most six digits, by a pattern",
    "operations/journey/batches.py": OWN,
    "connector/lag/margin.py": COMPUTED,
    "connector/watch/latency.py": COMPUTED,
    "connector/watch/lineage/lineage.py": COMPUTED,
    "connector/schemas/avro_steps.py": COMPUTED,
    "connector/source/group/compare.py": COMPUTED,
    "connector/deadletter/post.py": COMPUTED,
    "operations/verify/running_query.py": "what the kernel says of processes",
    "operations/verify/verify_run.py": "a file that a process of this run has written",
    "operations/verify/history.py": "IDs of entries that the server has given, or that StreamId has parsed before",
}
for _path in (
    *(
        "connector/source/task/read_partition.py",
        "connector/deadletter/listing.py",
        "connector/deadletter/mover.py",
    ),
    *(
        "connector/source/rows/nested_json.py",
        "connector/source/task/fetcher.py",
        "connector/source/rows/columns.py",
    ),
    *(
        "connector/deadletter/redrive_plan.py",
        "base/units.py",
        "connector/lag/group_metrics.py",
    ),
    *(
        "connector/watch/query_metrics.py",
        "connector/wire/xadd_bytes.py",
        "connector/wire/lines.py",
        "connector/wire/pending_page.py",
    ),
    *("connector/wire/entry_page.py", "connector/wire/walk.py"),
    *(
        "connector/sink/chunks.py",
        "connector/sink/fingerprint.py",
        "connector/sink/ledger_view.py",
        "connector/sink/delivery.py",
    ),
    *(
        "connector/sink/trim.py",
        "connector/source/archive/rows.py",
        "connector/source/archive/history.py",
        "connector/source/archive/files.py",
        "operations/transfer/parquet.py",
    ),
    *("connector/sink/row_errors.py", "connector/source/pending/claim.py"),
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
    assert calling - ALLOWED.keys() == set(), "use spark_streams.base.numbers.parse_number"
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
