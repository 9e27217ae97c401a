"""What is wrong with options whatever they are for."""

from __future__ import annotations

import pytest

from spark_streams.connector.errors import InvalidOptionError, RStreamError, UnknownOptionError, UnsupportedError
from spark_streams.connector.options.uses import check_before_use, require_options


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"streams": "a", "GROUP": "g", "checkpointLocation": "/x", "queryName": "q"},
        {"delivery": "exactly-once"},  # a sink's
        {"startingOffsets": "latest"},  # not in spark.read
        {"stream": "a", "maxlen": "5"},
    ],
)
def test_what_something_takes_passes(given: dict[str, str]) -> None:
    check_before_use(given)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"grup": "g"}, UnknownOptionError, "format rstream has no option 'grup'; did you mean 'group'?"),
        ({"Strem": "g"}, UnknownOptionError, "no option 'Strem'; did you mean 'stream'?"),
        (
            {"zzz": "g"},
            UnknownOptionError,
            "no option 'zzz'; valid options: url, username, .*, streams, .*, stream, .*waitReplicas",
        ),
        ({"path": "orders"}, UnknownOptionError, r"take no path .*: set option streams to read"),
        ({"mode": "IGNORE"}, InvalidOptionError, "source option mode='IGNORE' must be one of PERMISSIVE"),
        ({"maxlen": "many"}, InvalidOptionError, "sink option maxlen='many' must be a whole number"),
        ({"delivery": "sometimes"}, InvalidOptionError, "option delivery='sometimes' must be one of"),
        # As Spark makes a table of its catalog.
        ({"provider": "rstream", "url": "x", "option.url": "x"}, UnsupportedError, "CREATE TABLE .* loses its options"),
    ],
)
def test_what_nothing_takes_is_refused(given: dict[str, str], kind: type[RStreamError], message: str) -> None:
    with pytest.raises(kind, match=message):
        check_before_use(given)


def test_no_option_at_all_is_refused() -> None:
    require_options({"url": "embedded:"}, "say it")
    for given in ({}, {"checkpointlocation": "/x"}):
        with pytest.raises(
            InvalidOptionError, match="no option is set: say it. For a table of Spark's catalog: .*TEMPORARY VIEW"
        ):
            require_options(given, "say it")
