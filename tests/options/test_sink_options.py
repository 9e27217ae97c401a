"""Options of the sink: which fit together, and errors that name those that do not."""

import pytest

from spark_streams.errors import InvalidOptionError
from spark_streams.options.sink_options import SinkOptions

QUERY = "be800551-afc6-46ac-a357-b30305364bfc"
URL = "redis://localhost:6379/0"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transaction": "t", "transactionBatch": "0"}, "transactionBatch needs option transactionQuery"),
        ({"transaction": "t", "transactionQuery": QUERY}, "transactionQuery needs option transactionBatch"),
        ({"transactionBatch": "0", "transactionQuery": QUERY}, "transactionBatch needs option transaction:"),
        ({"transaction": "t", "transactionBatch": "-1", "transactionQuery": QUERY}, "must be a whole number"),
        ({"transaction": "t", "transactionBatch": "0", "transactionQuery": "billing"}, "must be the ID of a query"),
    ],
)
def test_a_named_write_needs_query_and_batch_together(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        SinkOptions.parse({"stream": "s", "url": URL, **given})


def test_the_first_batch_has_number_0() -> None:
    given = {"stream": "s", "transaction": "t", "transactionBatch": "0", "transactionQuery": QUERY.upper()}
    options = SinkOptions.parse({"url": URL, **given})
    assert (options.transaction_batch, options.transaction_query) == (0, QUERY)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxlen": "5", "minId": "5"}, "maxlen and minId contradict"),
        ({"minId": "5", "retention": "1h"}, "minId and retention contradict"),
        ({"trim": "maxlen", "maxlen": "5"}, "sink option trim='maxlen' must be acked"),
        ({"approximate": "false"}, "approximate needs one of maxlen, minId, retention, retentionBytes, trim:"),
        ({"minId": "x"}, "minId='x' is not an entry ID"),
        ({"retention": "7"}, "retention='7' must be a duration"),
        ({"delivery": "twice"}, "must be one of exactly-once, at-least-once"),
        ({"waitReplicas": "0"}, "waitReplicas='0'"),
    ],
)
def test_sink_options_that_do_not_fit(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        SinkOptions.parse({"stream": "s", "url": URL, **given})


def test_sink_options_by_default_and_given() -> None:
    plain = SinkOptions.parse({"stream": "s", "url": URL})
    assert (plain.delivery, plain.trim, plain.approximate) == ("exactly-once", None, True)
    given = SinkOptions.parse({"url": URL, "trim": "acked", "retention": "2d"})
    assert (given.stream, given.trim, given.retention) == (None, "acked", 172_800_000)
