"""Check that a job does not write to a stream that it reads: such a job would never end. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.base.pattern import matches
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions


def check_feedback_loop(source: SourceOptions, written: Mapping[str, SinkOptions]) -> None:
    """Raise ConfigError if the job writes to a stream that it reads.

    written: the options of each sink, by the configuration key that names its stream.
    """
    pattern = source.streams_pattern
    for key, sink_options in written.items():
        stream = sink_options.stream
        if stream is None or sink_options.address.url != source.address.url:
            continue
        if stream in (source.streams or ()):
            naming_option = "source.streams names"
        elif pattern is not None and matches(pattern, stream) and source.without_excluded([stream]):
            naming_option = f"source.streamsPattern {pattern!r} finds"
        else:
            continue
        raise ConfigError(
            f"{key} is {stream!r}, which {naming_option}, too: the job would read its own output without end. "
            "Name another stream, or exclude it with source.streamsExcept"
        )
