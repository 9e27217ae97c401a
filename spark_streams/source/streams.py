"""Which streams a query reads, its group on each of them, and its lease on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from spark_streams.options import Options
from spark_streams.source.group import Membership
from spark_streams.source.lease import Lease
from spark_streams.source.offsets import Offset
from spark_streams.source.start import create_groups, create_groups_of_pattern, matching_streams
from spark_streams.wire.connection import Connection

_LOOK_FOR_STREAMS = 2.0  # seconds between two looks for streams that match the pattern


class Streams:
    """Those of the options, or those that match the pattern. now: seconds that only go up."""

    def __init__(self, options: Options, now: Callable[[], float]) -> None:
        self._options = options
        self._now = now
        self._lease = Lease(options.address, options["group"], options["consumer"])
        self._found = 0.0  # when streams were last looked for
        self.member = Membership(options["streams"] or (), options["group"], options["consumer"])

    @property
    def by_pattern(self) -> bool:
        """Whether streams come and go while the query runs."""
        return self._options["streamsPattern"] is not None

    def join(self, server: Connection) -> None:
        """Have the group on every stream that is there. Raises ConsumerTakenError, WrongKeyTypeError, ServerError."""
        if self.by_pattern:
            self.find(server)
        else:
            self.hold(server, self.member.streams)
            create_groups(server, self.member, self.member.streams, self._options["startingOffsets"])

    def find(self, server: Connection) -> None:
        """Look for the pattern's streams, if there is one, and join those that are new. Raises as `join` does."""
        if not self.by_pattern:
            return
        letters = self._options["deadLetterStream"]
        found = matching_streams(server, self._options["streamsPattern"], [letters] if letters else [])
        self.hold(server, found)
        have = create_groups_of_pattern(server, self.member, found, self._options["startingOffsets"])
        self.member = replace(self.member, streams=tuple(have))
        self._found = self._now()

    def of(self, server: Connection, begin: Offset, look: bool, at_once: bool) -> tuple[str, ...]:
        """The streams of a trigger, and the lease on them: those of the options, or of the pattern and the checkpoint.

        look: whether streams that are new are looked for, now and then or `at_once`. Raises as `join` does.
        """
        if self.by_pattern:
            if look and (at_once or self._now() - self._found >= _LOOK_FOR_STREAMS):
                self.find(server)
            streams = tuple(sorted({*self.member.streams, *begin.streams}))
        else:
            # Streams that the query was given since; the others' groups must be there, or something is lost.
            streams = self.member.streams
            new = [stream for stream in streams if stream not in begin.positions]
            create_groups(server, self.member, new, self._options["startingOffsets"])
        self.hold(server, streams)
        return streams

    def hold(self, server: Connection, streams: Sequence[str]) -> None:
        """Have the lease on these streams. Raises ConsumerTakenError."""
        self._lease.hold(server, streams)

    def release(self) -> None:
        """Give the lease back."""
        self._lease.release()
