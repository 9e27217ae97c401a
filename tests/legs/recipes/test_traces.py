"""trace_context.py: what is a trace context, and a trace that goes on through dead letters and a redrive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_streams.cli import main
from tests.connector.spark.streams import run_to_the_end
from tools.servers.server import Server

pytestmark = pytest.mark.spark
Recipe = Callable[[str], ModuleType]

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


# What each parent goes on with: its flags, or None where a trace begins.
PARENTS = [
    (f"00-{TRACE}-{SPAN}-01", "01"),
    (f"00-{TRACE}-{SPAN}-00", "00"),
    (f"cc-{TRACE}-{SPAN}-01-what-comes", "01"),  # of a later version
    (f"00-{TRACE}-{SPAN}-01-more", None),
    (f"ff-{TRACE}-{SPAN}-01", None),
    (f"00-{TRACE.upper()}-{SPAN}-01", None),
    (f"00-{'0' * 32}-{SPAN}-01", None),
    (f"00-{TRACE}-{'0' * 16}-01", None),
    (f"00-{TRACE}-{SPAN}", None),
    ("", None),
    (None, None),
]


def test_a_valid_parent_is_continued_and_none_else(spark: SparkSession, recipe: Recipe) -> None:
    came = [("s", f"{n}-0", parent, "a=1") for n, (parent, _) in enumerate(PARENTS)]
    rows = spark.createDataFrame(came, "_stream STRING, _id STRING, traceparent STRING, tracestate STRING")
    step = recipe("trace_context").continued
    made = step(rows, "check").collect()
    parts = [row["traceparent"].split("-") for row in made]
    assert {(version, len(trace), len(span)) for version, trace, span, _ in parts} == {("00", 32, 16)}
    assert len({span for _, _, span, _ in parts} | {SPAN}) == len(PARENTS) + 1
    begun = [trace for (_, trace, _, _), (_, flags) in zip(parts, PARENTS, strict=True) if flags is None]
    assert len({*begun, TRACE}) == len(begun) + 1
    for row, (_, trace, _, flags), (parent, goes_on) in zip(made, parts, PARENTS, strict=True):
        if goes_on is None:
            assert (flags, row["tracestate"]) == ("01", None), parent
        else:
            assert (trace, flags, row["tracestate"]) == (TRACE, goes_on, "a=1"), parent
    assert step(rows, "check").collect() == made, "a batch that is run again says the same"
    assert not {row["traceparent"] for row in step(rows, "ship").collect()} & {row["traceparent"] for row in made}


def test_a_trace_goes_on_behind_a_dead_letter(
    spark: SparkSession, server: Server, recipe: Recipe, tmp_path: Path
) -> None:
    """The letter has both fields as they came, the entry that is sent back, too."""
    query = recipe("trace_context").traced(spark, server.url).option("checkpointLocation", str(tmp_path / "checkpoint"))
    came = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "shop=1"}
    with server.client(decode_responses=True) as client:
        client.xadd("example:traced", {"customer": "bob", "amount": "a lot", **came})
        run_to_the_end(lambda: query.trigger(availableNow=True).start())
        ((_, letter),) = client.xrange("example:traced:dead")
        assert {name: letter[name] for name in came} == came
        (tmp_path / "repairs.py").write_text("def repair(letter):\n    return {**letter.fields, 'amount': '5.00'}\n")
        words = [
            "dead",
            "redrive",
            "example:traced:dead",
            "--yes",
            "--url",
            server.url,
            "--transform",
            "repairs:repair",
        ]
        with pytest.MonkeyPatch.context() as patched:
            patched.syspath_prepend(str(tmp_path))
            ended = CliRunner().invoke(main, words)
        assert ended.exit_code == 0, ended.output
        _, (_, again) = client.xrange("example:traced")
        assert {name: again[name] for name in came} == came
        run_to_the_end(lambda: query.trigger(availableNow=True).start())
        ((_, entry),) = client.xrange("example:checked")
    assert (entry["customer"], entry["amount"], entry["tracestate"]) == ("bob", "5.00", "shop=1")
    assert entry["traceparent"].split("-")[1] == TRACE
    assert entry["traceparent"].split("-")[2] != SPAN
