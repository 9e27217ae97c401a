"""The consumer group of an archive, which only archive jobs make: it reads from the first entry on."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.connector.errors import ConfigError, RStreamError, StreamStateError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.source.stream_names import resolve_shards
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import group_named
from spark_streams.jobs.job import Job
from spark_streams.jobs.part import Written
from spark_streams.jobs.parts.source import Source


class ArchivedGroup(Written):
    """Consumer group of an archive. The job makes it on each stream that does not have it yet.

    Args:
        job: The job, with its configuration.
        source: The source of the archive.

    Raises:
        ConfigError: An option of the source would let the job trim an entry before it is archived.
        StreamStateError: No archive job has made the group.
    """

    def __init__(self, job: Job, source: Source) -> None:
        _check(job, source)
        self._address, self._group = source.options.address, source.options.group
        with connect(self._address) as server:
            self._fresh = self._streams_without(server, resolve_shards(server, source.options.streams or ()))

    def open(self, streams: Sequence[str]) -> None:
        with connect(self._address) as server:
            for stream in self._fresh:
                self._make(server, stream)

    def _streams_without(self, server: Server, streams: Sequence[str]) -> list[str]:
        """Return the streams that do not have the group yet. Raises StreamStateError if no archive job has made it.

        Entries that were delivered to such a group before are not in the archive, and would be trimmed.
        """
        fresh = []
        for stream in streams:
            described = server.execute("XINFO", "GROUPS", stream) if server.execute("EXISTS", stream) else []
            if group_named(self._group, described) is None:
                fresh.append(stream)
            elif not server.execute("EXISTS", self._mark(stream)):
                raise StreamStateError(
                    f"group {self._group!r} of stream {stream!r} at {self._address} was not made by an archive job: "
                    "entries that it has received before are not in the archive; set another source.group"
                )
        return fresh

    def _make(self, server: Server, stream: str) -> None:
        # The mark first: a mark without a group has no effect, and a group without the mark is refused.
        server.execute("SET", self._mark(stream), "1")
        try:
            server.execute("XGROUP", "CREATE", stream, self._group, "0", "MKSTREAM")
        except RStreamError:
            server.execute("DEL", self._mark(stream))
            raise

    def _mark(self, stream: str) -> bytes:
        """Return the key that marks the group as made by an archive job, to read from the first entry on."""
        return key_beside(stream, "archive", self._group)


def _check(job: Job, source: Source) -> None:
    for key in ("startingOffsets", "startingTimestamp"):
        if job.get(f"source.{key}") is not None:
            raise ConfigError(f"source.{key} has no meaning here: an archive begins with the first entry; leave it out")
    if job.get("source.streamsPattern") is not None:
        raise ConfigError("source.streamsPattern has no meaning here: an archive names its streams (source.streams)")
    if source.options.shards is not None:
        raise ConfigError("source.shards has no meaning here: the writer creates the shards; leave it out")
    if source.options.no_ack:
        raise ConfigError("source.noAck has no meaning here: an archive keeps entries pending until they are in it")
