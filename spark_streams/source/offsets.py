"""The offset that Spark keeps in its log: where each stream's batch ends, and what the batch held.

A batch is (start, end]. What it held is on the server, in the pending list of our consumer; the offset says whose list
that is, and how many entries it must hold, so that a replay after a crash is the same batch or an error, never a
smaller one (FACTS S5, S6).

    {"version": 1, "group": "billing", "consumer": "spark",
     "streams": {"orders": "1700000000000-0"},                      where each stream stands
     "batch": {"orders": {"count": 1000, "owned": true}}}           what the batch that ends here took from it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_streams.errors import OffsetError
from spark_streams.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.source.plan import Run

VERSION = 1


@dataclass(frozen=True)
class Share:
    """What a batch took from one stream. owned: these are all entries that the stream held between start and end."""

    count: int
    owned: bool


@dataclass(frozen=True)
class Offset:
    """group, consumer: whose pending list; positions: per stream; shares: per stream that the batch took from."""

    group: str
    consumer: str
    positions: Mapping[str, StreamId] = field(default_factory=dict)
    shares: Mapping[str, Share] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """Raises OffsetError for anything that `to_json` of this or an older version did not write."""
        if not isinstance(value, Mapping) or value.get("version") != VERSION:
            raise OffsetError(f"the checkpoint's offset {value!r} is not one of rstream, version {VERSION}")
        try:
            return cls(
                str(value["group"]),
                str(value["consumer"]),
                {stream: StreamId.parse(text) for stream, text in value["streams"].items()},
                {stream: Share(int(one["count"]), bool(one["owned"])) for stream, one in value["batch"].items()},
            )
        except (KeyError, AttributeError, TypeError, InvalidStreamId) as error:
            raise OffsetError(f"the checkpoint's offset {value!r} cannot be read: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """The form above."""
        return {
            "version": VERSION,
            "group": self.group,
            "consumer": self.consumer,
            "streams": {stream: str(at) for stream, at in sorted(self.positions.items())},
            "batch": {s: {"count": one.count, "owned": one.owned} for s, one in sorted(self.shares.items())},
        }

    def __getitem__(self, stream: str) -> StreamId:
        """Where the stream stands; 0-0 where it is not named."""
        return self.positions.get(stream, MIN_ID)

    def after(self, runs: Iterable[Run]) -> Offset:
        """The offset at the end of a batch of these runs, which begins here; runs of a stream in order."""
        positions, shares = dict(self.positions), dict[str, Share]()
        for run in runs:
            share = shares.get(run.stream, Share(0, True))
            unbroken = positions.get(run.stream, MIN_ID) == run.after
            shares[run.stream] = Share(share.count + run.count, share.owned and run.owned and unbroken)
            positions[run.stream] = run.last
        return Offset(self.group, self.consumer, positions, shares)
