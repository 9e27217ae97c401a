"""A redrive: its options, the streams that it may write to, and its plan for a page. The plan is pure.

Each row of the page has one decision, by the first of these conditions that holds (`decide`):

    it is no dead letter, or does not match the criteria              NOT_MEANT   stays, and is not counted
    it was redriven too often                                         PARK        to the parking stream, as it is
    no destination is set, and it names no stream, or the
      dead-letter stream or the parking stream itself                 HOMELESS    stays
    no destination is set, and its stream is not allowed              CLOSED      stays
    the transform returns None for it                                 LEFT        stays
    none of them                                                      MOVE        to its stream, or to the destination

A dead letter that is moved becomes an entry again, with its original fields and the mark (envelope.py).

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

import enum
import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.numbers import COUNT_MAX, parse_number
from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.connector.deadletter.envelope import FIRST_FORM, MARK, raw, text
from spark_streams.connector.deadletter.letter_page import Criteria, DeadLetterPage, by_value, repaired
from spark_streams.connector.deadletter.listing import KindCounts
from spark_streams.connector.deadletter.transform import FieldChanges, Transform
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.keys import is_product_key, origin_field, origins_key
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.lines import Index, Mask
from spark_streams.connector.wire.scan import names_and_patterns
from spark_streams.connector.wire.xadd_bytes import Requests, encode_xadd

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


# -- the plan of a page ------------------------------------------------------------------------------------------------


class Decision(enum.IntEnum):
    """What becomes of a row of a page."""

    NOT_MEANT = enum.auto()
    PARK = enum.auto()
    HOMELESS = enum.auto()
    CLOSED = enum.auto()
    LEFT = enum.auto()
    MOVE = enum.auto()


# The actions in reports, in the order in which they are counted.
_ACTIONS = {Decision.MOVE: "move", Decision.PARK: "park", Decision.HOMELESS: "stay", Decision.CLOSED: "refuse"}


@dataclass(frozen=True)
class RedrivePart:
    """Dead letters of a plan that are sent together. places: their indices in the plan's `rows`; ids: theirs; requests:
    packed XADDs."""

    places: Index
    ids: Sequence[bytes]
    requests: bytes | memoryview = b""

    def without(self, refused: Collection[int]) -> RedrivePart:
        """Return the part without these indices of `ids`, and without XADDs."""
        accepted = [place for place in range(len(self.ids)) if place not in refused]
        return RedrivePart(self.places[accepted], [self.ids[place] for place in accepted])


@dataclass(frozen=True)
class PagePlan:
    """Plan for one page: what becomes of its rows, and the entries that are appended for those that leave."""

    page: DeadLetterPage
    decisions: Index  # of each row
    last: int  # the last row that was examined; -1 if none was
    rows: Index  # that leave the dead-letter stream: first those that are moved, then those that are parked
    requests: Requests  # an XADD for each of `rows`
    to: Sequence[bytes]  # the destination streams
    target: Index  # for each of `rows`, the index of its stream in `to`
    counts: KindCounts  # by (action, destination, stage, reason)

    def count(self, decision: Decision) -> int:
        """Return the number of rows with this decision."""
        return int(np.count_nonzero(self.decisions == decision))

    @functools.cached_property
    def ids(self) -> Sequence[bytes]:
        ids: list[bytes] = self.page.ids.take(pa.array(self.rows)).to_pylist()
        return ids

    @property
    def last_id(self) -> bytes | None:
        """The ID of the last row that was examined; None if there is none."""
        return self.page.ids[self.last].as_py() if self.last >= 0 else None

    def part(self, to: Collection[bytes]) -> RedrivePart:
        """Return the dead letters for some of the streams."""
        if len(to) == len(self.to):
            return RedrivePart(np.arange(len(self.rows)), self.ids, self.requests.data)
        codes = [place for place, stream in enumerate(self.to) if stream in to]
        places = np.flatnonzero(np.isin(self.target, codes))
        requests = b"".join(self.requests.slice(place, place + 1) for place in places.tolist())
        return RedrivePart(places, [self.ids[place] for place in places.tolist()], requests)


def origins(page: DeadLetterPage, options: RedriveOptions) -> set[Origin]:
    """Return the streams and groups that dead letters of a page came from; none if the options name a destination."""
    if options.to is not None:
        return set()
    return set(_coded_origins(page)[1].values())


def plan_page(
    page: DeadLetterPage,
    options: RedriveOptions,
    repair: Transform | None,
    limit: int | None,
    open_to: Collection[Origin] = (),
) -> PagePlan:
    """Plan the matching dead letters of a page, at most `limit` of them. open_to: those of `origins` that are allowed
    as destinations. Raises TransformError."""
    redrives = by_value(page.envelope_column("redrives"), _number).astype(np.int64)
    decisions = decide(page, redrives, options, open_to)
    last = _cut(decisions, limit)
    moved = np.flatnonzero(decisions == Decision.MOVE)
    if repair is None:
        fields = page.originals(moved)
    else:
        decisions[moved] = Decision.LEFT
        moved, fields = repaired(repair, page, moved)
        decisions[moved] = Decision.MOVE
    parked = np.flatnonzero(decisions == Decision.PARK)
    requests: list[Requests] = []
    targets = [np.empty(0, np.int64)]
    to: list[bytes] = []
    if len(moved):
        if options.to is None:
            target = page.envelope_column("stream").take(pa.array(moved)).dictionary_encode()
        else:
            target = _named(raw(options.to), len(moved))
        marks = _marks(page, options.stream, moved, redrives[moved] + 1)
        to = target.dictionary.to_pylist()
        targets.append(target.indices.to_numpy())
        requests.append(encode_xadd(target, [MARK], [marks], first=fields)[0])
    if len(parked):
        parking = raw(options.parking or "")
        to = list(dict.fromkeys([*to, parking]))
        targets.append(np.full(len(parked), to.index(parking)))
        requests.append(encode_xadd(parking, [], [], first=page.all_fields(parked))[0])
    rows, counts = np.concatenate([moved, parked]), _counts(page, decisions, options)
    return PagePlan(page, decisions, last, rows, Requests.concatenate(requests), to, np.concatenate(targets), counts)


def decide(page: DeadLetterPage, redrives: Index, options: RedriveOptions, open_to: Collection[Origin]) -> Index:
    """Return the decision for each row, by the table of this module without its line about the transform. redrives: how
    often each row was redriven."""
    table = {
        Decision.NOT_MEANT: ~(options.criteria.mask(page) & page.are_dead_letters()),
        Decision.PARK: redrives >= options.max_redrives,
    }
    if options.to is None:
        table[Decision.HOMELESS] = _are_homeless(page, options)
        table[Decision.CLOSED] = _are_closed(page, open_to)
    return np.select([*table.values()], [*table], Decision.MOVE)


def _cut(decisions: Index, limit: int | None) -> int:
    """Decide nothing behind the last row that may leave under the limit. Return the last row that is examined."""
    leaving = np.flatnonzero((decisions == Decision.MOVE) | (decisions == Decision.PARK))
    if limit is None or len(leaving) <= limit:
        return len(decisions) - 1
    last = int(leaving[limit - 1]) if limit else -1
    decisions[last + 1 :] = Decision.NOT_MEANT
    return last


def _are_homeless(page: DeadLetterPage, options: RedriveOptions) -> Mask:
    """Return which rows name no stream that they can return to."""
    nowhere = ("", options.stream, options.parking)
    return by_value(page.envelope_column("stream"), lambda stream: stream in nowhere).astype(np.bool_)


def _are_closed(page: DeadLetterPage, open_to: Collection[Origin]) -> Mask:
    """Return which rows are not allowed to return to their stream."""
    codes, origins_by_code = _coded_origins(page)
    return np.isin(codes, [code for code, origin in origins_by_code.items() if origin not in open_to])


def _coded_origins(page: DeadLetterPage) -> tuple[Index, dict[int, Origin]]:
    """Return (per row the code of its stream and group, these by their code)."""
    streams, groups = (
        pc.fill_null(page.envelope_column(name), b"").dictionary_encode() for name in ("stream", "group")
    )
    stream_names, group_names = streams.dictionary.to_pylist(), groups.dictionary.to_pylist()
    codes = streams.indices.to_numpy().astype(np.int64) * max(1, len(group_names)) + groups.indices.to_numpy()
    pairs = {code: divmod(code, max(1, len(group_names))) for code in np.unique(codes).tolist()}
    return codes, {code: (text(stream_names[a]), text(group_names[b])) for code, (a, b) in pairs.items()}


def _counts(page: DeadLetterPage, decisions: Index, options: RedriveOptions) -> KindCounts:
    """Count the rows by (action, destination, stage, reason)."""
    counts = KindCounts()
    own = page.envelope_column("stream")
    destinations = {Decision.MOVE: own if options.to is None else options.to, Decision.PARK: options.parking or ""}
    for decision, action in _ACTIONS.items():
        columns = [action, destinations.get(decision, own), *map(page.envelope_column, ("stage", "reason"))]
        counts.add(page.ids, columns, np.flatnonzero(decisions == decision))
    return counts


def _marks(page: DeadLetterPage, stream: str, rows: Index, redrives: Index) -> pa.Array:
    """Return per row the mark of its entry."""
    indices = pa.array(rows)
    blank, empty = pa.scalar(b" ", pa.binary()), pa.scalar(b"", pa.binary())
    times = pa.array(redrives).cast(pa.string()).cast(pa.binary())
    since, own, previous = (
        pc.fill_null(page.envelope_column(name).take(indices), b"") for name in ("first-failed", "id", "previous")
    )
    own = pc.binary_join_element_wise(pa.scalar(b"/0-0 ", pa.binary()), own, empty)
    found = pc.extract_regex(pc.if_else(pa.array(redrives == 1), own, previous), FIRST_FORM)
    first = pc.fill_null(pc.struct_field(found, "first"), b"")
    letter = (pa.scalar(raw(stream) + b"/", pa.binary()), page.ids.take(indices))
    return pc.binary_join_element_wise(times, blank, since, blank, *letter, first, empty)


def _named(stream: bytes, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([stream], pa.binary()))


def _number(value: str) -> int:
    return parse_number(value, COUNT_MAX) or 0
