"""Options of Kafka's connector and of spark-redis: the error names the option that replaces them."""

from __future__ import annotations

import re

import pytest

from spark_streams.connector.errors import UnknownOptionError
from spark_streams.connector.options import migration
from spark_streams.connector.options.access_options import check_before_use
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.options.table import BATCH_SOURCE, SINK, SOURCE

ROWS = (*migration.KAFKA_READ, *migration.KAFKA_WRITE, *migration.SPARK_REDIS)


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
    for row in ROWS:
        if row.names and row.instead != "not needed":
            assert set(re.findall(r"`(\w+)`", row.instead)) <= known, row


def test_no_option_of_this_format_is_called_one_of_another() -> None:
    for option in (*SOURCE, *BATCH_SOURCE, *SINK):
        assert migration.hint_of_other_connector(option.name) is None
