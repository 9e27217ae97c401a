"""Options of the sink: which fit together, and errors that name those that do not."""

import pytest

from spark_streams.connector.errors import UnknownOptionError
from spark_streams.connector.options.access_options import SinkOptions

QUERY = "be800551-afc6-46ac-a357-b30305364bfc"
URL = "redis://localhost:6379/0"


def test_the_first_batch_has_number_0() -> None:
    given = {"stream": "s", "transaction": "t", "transactionBatch": "0", "transactionQuery": QUERY.upper()}
    options = SinkOptions.parse({"url": URL, **given})
    assert (options.transaction_batch, options.transaction_query) == (0, QUERY)


def test_sink_options_by_default_and_given() -> None:
    plain = SinkOptions.parse({"stream": "s", "url": URL})
    assert (plain.delivery, plain.trim) == ("exactly-once", None)
    given = SinkOptions.parse({"url": URL, "trim": "acked", "retention": "2d"})
    assert (given.stream, given.trim, given.retention) == (None, "acked", 172_800_000)


def test_trimming_has_no_option_for_exact_thresholds() -> None:
    with pytest.raises(UnknownOptionError, match="sink has no option 'approximate'; valid options: .*maxlen"):
        SinkOptions.parse({"stream": "s", "url": URL, "maxlen": "5", "approximate": "false"})
