"""A job that writes to a stream it reads would never come to an end: it is refused before it starts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.errors import ConfigError
from spark_streams.model.pattern import matches
from spark_streams.options.sink_options import SinkOptions
from spark_streams.options.source_options import SourceOptions


def check_ways_back(source: SourceOptions, written: Mapping[str, SinkOptions]) -> None:
    """written: the options of what the job writes, by the key that names the stream in messages. Raises ConfigError
    where rows would go back to where they were read."""
    pattern = source.streams_pattern
    for key, to in written.items():
        stream = to.stream
        if stream is None or to.address.url != source.address.url:
            continue
        if stream in (source.streams or ()):
            read = "source.streams names"
        elif pattern is not None and matches(pattern, stream):
            read = f"source.streamsPattern {pattern!r} finds"
        else:
            continue
        raise ConfigError(
            f"{key} is {stream!r}, which {read}, too: the job would read what it writes, without end; "
            "name another stream"
        )
