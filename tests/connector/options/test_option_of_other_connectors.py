"""Options of Kafka's connector and of spark-redis: the error names the option that replaces them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_streams.connector.errors import UnknownOptionError
from spark_streams.connector.options.access_options import check_before_use
from spark_streams.connector.options.option import KAFKA, SPARK_REDIS, hint_of_other_connector
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.options.table import BATCH_SOURCE, SINK, SOURCE

PAGE = Path(__file__).parents[3] / "docs/guide/migrate.md"
NOT_IN_THE_TABLES = {"kafka.*"}  # what is left of the settings of Kafka's clients


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("subscribe", "an option of Spark's Kafka connector: use streams "),
        ("kafka.bootstrap.servers", "Kafka connector: use url "),
        ("kafka.SASL.mechanism", "Kafka connector: use url "),
        ("kafka.fetch.min.bytes", "Kafka connector: use url "),
        ("maxoffsetspertrigger", "use maxEntriesPerTrigger or maxBytesPerTrigger "),
        ("includeHeaders", "it is not needed here "),
        ("stream.keys", "an option of spark-redis: use streams "),
        ("stream.group.name", "an option of spark-redis: use group "),
    ],
)
def test_the_error_names_the_option_that_replaces_it(name: str, hint: str) -> None:
    with pytest.raises(UnknownOptionError, match=re.escape(hint)):
        check_before_use({name: "x"})
    with pytest.raises(UnknownOptionError, match=re.escape(hint)):
        SourceOptions.parse({"url": "redis://h", "streams": "s", "group": "g", name: "x"})


def test_what_is_named_instead_is_an_option() -> None:
    known = {option.name for option in (*SOURCE, *BATCH_SOURCE, *SINK)}
    for ours in (*KAFKA.values(), *SPARK_REDIS.values()):
        assert set(ours.split(" or ")) <= {*known, ""}


@pytest.mark.parametrize("head", ["Kafka", "spark-redis"])
def test_the_page_has_the_same_options_in_the_same_order(head: str) -> None:
    """Columns, and options that have the same name here, are on the page only."""
    hinted = KAFKA if head == "Kafka" else SPARK_REDIS
    tables = re.findall(rf"^\| {head} \|.*\n\|-.*\n((?:\|.*\n)+)", PAGE.read_text("utf-8"), re.MULTILINE)
    rows = [row.split(" | ") for table in tables for row in table.splitlines() if not row.startswith("| column")]
    listed = {
        name: " or ".join(re.findall(r"`(\w+)`", ours))
        for names, ours, *_ in rows
        for name in re.findall(r"`([^`]+)`", names)
        if name in hinted
    }
    assert [*listed.items()] == [(name, ours) for name, ours in hinted.items() if name not in NOT_IN_THE_TABLES]


def test_no_option_of_this_format_is_called_one_of_another() -> None:
    for option in (*SOURCE, *BATCH_SOURCE, *SINK):
        assert hint_of_other_connector(option.name) is None
