"""A job that writes to what it reads is refused."""

from __future__ import annotations

import pytest

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.jobs.parts.query import check_feedback_loop

HERE = "redis://127.0.0.1:6379"


@pytest.mark.parametrize(
    ("source", "sink", "refused"),
    [
        ({"streams": "a,b"}, {"stream": "b"}, "output x: sink.stream is 'b', which source.streams names, too: the job"),
        ({"streams": "a"}, {"stream": "b"}, None),
        ({"streams": "a"}, {"stream": "a", "url": "redis://127.0.0.1:6380"}, None),
        ({"streams": "a"}, {"streamColumn": "to"}, None),
        ({"streamsPattern": "o:*"}, {"stream": "o:late"}, "is 'o:late', which source.streamsPattern 'o:.' finds, too"),
        ({"streamsPattern": "o:[^l]*"}, {"stream": "o:late"}, None),
    ],
)
def test_a_job_that_reads_its_own_output_is_refused(
    source: dict[str, str], sink: dict[str, str], refused: str | None
) -> None:
    read = SourceOptions.parse({"url": HERE, "group": "g", **source})
    written = {"output x: sink.stream": SinkOptions.parse({"url": HERE, **sink})}
    if refused is None:
        check_feedback_loop(read, written)
    else:
        with pytest.raises(ConfigError, match=refused):
            check_feedback_loop(read, written)
