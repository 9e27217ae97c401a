"""Options of a redrive, and the streams that dead letters may be redriven to.

Any client that may append to a dead-letter stream chooses `dl.stream` and `dl.group`, and a redrive would write there
with the operator's rights. So a dead letter is moved back only to an origin that a key of the product names. Queries
and consumers write it with their dead letters, and a producer has no right to it:

    dl.stream = orders, dl.group = billing     rstream:origins:{orders:dead} has both      moved
    a retry stream of orders                   the name of the retry stream                moved, only to orders
    rstream:…                                  keys of the product                         never moved
    others                                     moved only if the operator names the stream (--allow, --to)

A parking stream has the origins of its dead-letter stream. If the operator names streams (`allow`), only these are
allowed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.connector.deadletter.letter_page import Criteria
from spark_streams.connector.deadletter.transform import FieldChanges
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.keys import is_product_key, origin_field, origins_key
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.scan import names_and_patterns

MAX_REDRIVES = 3
PARKED = ":parked"  # the end of the default name of a parking stream
Origin = tuple[str, str]  # (stream, group) of a dead letter, as text


@dataclass(frozen=True)
class RedriveOptions:
    """Options of a redrive. The digest has these names."""

    stream: str  # of the dead letters
    criteria: Criteria = field(default_factory=Criteria)  # of the dead letters that it moves
    to: str | None = None  # the destination; None: the stream that each came from
    limit: int | None = None  # how many to move; None: all
    rate: int | None = None  # dead letters per second; None: no limit
    max_redrives: int = MAX_REDRIVES  # how often a dead letter is redriven at most
    parking: str | None = None  # the stream for those beyond
    transform: str | None = None  # `module:function` that repairs dead letters
    allow: tuple[str, ...] = ()  # streams that entries may return to, names or patterns; none: recorded origins
    changes: FieldChanges = field(default_factory=FieldChanges)  # of fields of each dead letter
    exact: bool = False  # `allow` has names, never patterns
    recorded: bool = False  # only recorded origins, also with `allow`

    def checked(self) -> RedriveOptions:
        """Return the options with the name of the parking stream. Raises InvalidOptionError."""
        for action, name in (("sent to", self.to), ("parked in", self.parking)):
            if name is not None and is_product_key(name):
                raise InvalidOptionError(
                    f"dead letters of {self.stream!r} cannot be {action} {name!r}: keys that begin with rstream: are "
                    "the product's own, and a redrive never writes to them. Name another stream"
                )
        if self.to is not None and self.allow:
            raise InvalidOptionError(f"to={self.to!r} names the only destination. Set it without allow")
        if self.changes and self.transform is not None:
            raise InvalidOptionError("set and unset cannot be combined with a transform: the transform sets all fields")
        if self.to == self.stream:
            raise InvalidOptionError(
                f"dead letters of {self.stream!r} cannot be sent to {self.to!r} itself. Name another stream"
            )
        if self.parking == self.stream:
            raise InvalidOptionError(
                f"dead letters of {self.stream!r} cannot be parked in {self.parking!r} itself. Name another stream"
            )
        checked = self if self.parking is not None else replace(self, parking=self.stream + PARKED)
        if checked.to == checked.parking:
            raise InvalidOptionError(
                f"dead letters of {self.stream!r} cannot be sent to {checked.to!r}, where they are parked. Name "
                "another stream"
            )
        return checked

    def digest(self) -> str:
        """Return a digest that is equal for equal options. The rate is not part of it."""
        fields = {**asdict(self), "rate": None}
        del fields["criteria"]["named"]  # what the server made of `streams`
        document = json.dumps(fields, sort_keys=True).encode("utf-8", "surrogatepass")
        return hashlib.sha256(document).hexdigest()[:16]


class Destinations:
    """Destinations of one redrive. stream: of the dead letters; allow: names or patterns of streams that the operator
    allows; exact: all are names; recorded: these only if they are recorded, too. It remembers origins."""

    def __init__(self, stream: str, allow: Sequence[str], exact: bool = False, recorded: bool = False) -> None:
        self._allow, self._exact, self._recorded = allow, exact, recorded
        self._allowed: NamesAndPatterns | None = None
        self._keys = [origins_key(stream), origins_key(stream.removesuffix(PARKED))]
        self._is_known: dict[Origin, bool] = {}

    def open_to(self, server: Server, origins: Iterable[Origin]) -> frozenset[Origin]:
        """Return the origins that are allowed as destinations. Raises ServerError."""
        candidates = [origin for origin in origins if origin[0] and not is_product_key(origin[0])]
        if self._allow:
            self._allowed = self._allowed or names_and_patterns(server, self._allow, self._exact)
            candidates = [origin for origin in candidates if self._allowed.selects(origin[0])]
            if not self._recorded:
                return frozenset(candidates)
        self._look_up(server, sorted({*candidates} - self._is_known.keys()))
        return frozenset(origin for origin in candidates if self._is_known[origin])

    def _look_up(self, server: Server, origins: Sequence[Origin]) -> None:
        """Look up which of these origins are recorded."""
        if not origins:
            return
        fields = [origin_field(*origin) for origin in origins]
        replies = server.execute_all([("HMGET", key, *fields) for key in self._keys])
        for origin, *values in zip(origins, *replies, strict=True):
            self._is_known[origin] = any(value is not None for value in values)
