"""Options of a redrive, and its plan for a page of dead letters. Pure: pages in, requests out.

A dead letter that was redriven too often is moved to the parking stream, with its envelope. A dead letter stays if

- the transform returns None for it;
- no destination is set, and it names no stream, or the dead-letter stream or the parking stream itself;
- its stream is not allowed (destinations.py).

Every other dead letter becomes an entry again, with its original fields and the mark (envelope.py), in the stream that
it came from or in another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.numbers import COUNT_MAX, parse_number
from spark_streams.connector.deadletter import transform
from spark_streams.connector.deadletter.criteria import Criteria
from spark_streams.connector.deadletter.envelope import MARK, raw, text
from spark_streams.connector.deadletter.field_changes import FieldChanges
from spark_streams.connector.deadletter.kind_counts import KindCounts
from spark_streams.connector.deadletter.page import DeadLetterPage, by_value
from spark_streams.connector.deadletter.redrive.destinations import PARKED, Origin
from spark_streams.connector.deadletter.redrive.page_plan import PagePlan
from spark_streams.connector.deadletter.transform import Transform
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.keys import is_product_key
from spark_streams.connector.wire.entries.lines import Index, Mask
from spark_streams.connector.wire.entries.xadd_bytes import Requests, encode_xadd

MAX_REDRIVES = 3


@dataclass(frozen=True)
class RedriveOptions:
    """stream: of the dead letters; to: destination, None: the stream that each came from; limit: how many to move,
    None: all; rate: dead letters per second, None: no limit; max_redrives: how often a dead letter is redriven at most;
    parking: the stream for those beyond; transform: `module:function` that repairs dead letters; allow: streams that
    entries may return to, names or patterns, by default recorded origins; exact: these are names, never patterns;
    recorded: only recorded origins, also with `allow`; changes: of fields of each dead letter. The digest has these
    names."""

    stream: str
    criteria: Criteria = field(default_factory=Criteria)
    to: str | None = None
    limit: int | None = None
    rate: int | None = None
    max_redrives: int = MAX_REDRIVES
    parking: str | None = None
    transform: str | None = None
    allow: tuple[str, ...] = ()
    changes: FieldChanges = field(default_factory=FieldChanges)
    exact: bool = False
    recorded: bool = False

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
        """Return a digest that is equal for equal options in all versions. The rate is not part of it."""
        fields = {**asdict(self), "rate": None}
        # As in versions without these options.
        if not self.allow:
            del fields["allow"]
        if not self.changes:
            del fields["changes"]
        for name in ("exact", "recorded"):
            if not fields[name]:
                del fields[name]
        if not self.criteria.ids:
            del fields["criteria"]["ids"]
        del fields["criteria"]["named"]  # what the server made of `streams`
        document = json.dumps(fields, sort_keys=True).encode("utf-8", "surrogatepass")
        return hashlib.sha256(document).hexdigest()[:16]


def origins(page: DeadLetterPage, options: RedriveOptions) -> set[Origin]:
    """Return the streams and groups that dead letters of a page came from; none if the options name a destination."""
    if options.to is not None:
        return set()
    return set(_origins(page).values())


def plan_page(
    page: DeadLetterPage,
    options: RedriveOptions,
    repair: Transform | None,
    limit: int | None,
    open_to: Collection[Origin] = (),
) -> PagePlan:
    """Plan the matching dead letters of a page, at most `limit` of them. open_to: those of `origins` that are allowed
    as destinations. Raises TransformError."""
    matching = np.flatnonzero(options.criteria.mask(page) & page.are_dead_letters())
    redrives = by_value(page.envelope_column("redrives").take(pa.array(matching)), _number).astype(np.int64)
    beyond = redrives >= options.max_redrives
    homes, closed = _are_homeless(page, options)[matching], _are_refused(page, options, open_to)[matching]
    stay = ~beyond & (homes | closed)
    last = page.count - 1
    homeless, refused = matching[~beyond & homes], matching[~beyond & closed & ~homes]
    selected, redrives, beyond = matching[~stay], redrives[~stay], beyond[~stay]
    if limit is not None and len(selected) > limit:
        selected, redrives, beyond = selected[:limit], redrives[:limit], beyond[:limit]
        last = int(selected[-1]) if limit else -1
        homeless, refused = homeless[homeless <= last], refused[refused <= last]
    parked, moved, redrive_numbers = selected[beyond], selected[~beyond], redrives[~beyond] + 1
    skipped = 0
    if repair is None:
        fields = page.originals(moved)
    else:
        repaired, fields = transform.apply(repair, page, moved)
        redrive_numbers = redrive_numbers[np.isin(moved, repaired)]
        skipped = len(moved) - len(repaired)
        moved = repaired
    counts = KindCounts()
    requests, targets = [], []
    to: list[bytes] = []
    if len(moved):
        if options.to is None:
            target = page.envelope_column("stream").take(pa.array(moved)).dictionary_encode()
        else:
            target = _named(raw(options.to), len(moved))
        to = target.dictionary.to_pylist()
        targets.append(target.indices.to_numpy())
        encoded, _ = encode_xadd(target, [MARK], [_marks(page, options.stream, moved, redrive_numbers)], first=fields)
        requests.append(encoded)
        destination = options.to if options.to is not None else page.envelope_column("stream")
        counts.add(
            page.ids, ["move", destination, page.envelope_column("stage"), page.envelope_column("reason")], moved
        )
    if len(parked):
        parking = raw(options.parking or "")
        to = list(dict.fromkeys([*to, parking]))
        targets.append(np.full(len(parked), to.index(parking)))
        encoded, _ = encode_xadd(parking, [], [], first=page.all_fields(parked))
        requests.append(encoded)
        counts.add(
            page.ids, ["park", text(parking), page.envelope_column("stage"), page.envelope_column("reason")], parked
        )
    counts.add(
        page.ids,
        ["stay", page.envelope_column("stream"), page.envelope_column("stage"), page.envelope_column("reason")],
        homeless,
    )
    counts.add(
        page.ids,
        ["refuse", page.envelope_column("stream"), page.envelope_column("stage"), page.envelope_column("reason")],
        refused,
    )
    rows = np.concatenate([moved, parked])
    ids = page.ids.take(pa.array(rows)).to_pylist()
    target_of = np.concatenate([np.empty(0, np.int64), *targets])
    sizes = len(moved), len(parked), skipped, len(homeless), len(refused)
    return PagePlan(page, rows, ids, Requests.concatenate(requests), to, target_of, *sizes, counts, last)


def _are_homeless(page: DeadLetterPage, options: RedriveOptions) -> Mask:
    """Return which dead letters name no stream that they can return to."""
    if options.to is not None:
        return np.zeros(page.count, np.bool_)
    nowhere = ("", options.stream, options.parking)
    return by_value(page.envelope_column("stream"), lambda stream: stream in nowhere).astype(np.bool_)


def _are_refused(page: DeadLetterPage, options: RedriveOptions, open_to: Collection[Origin]) -> Mask:
    """Return which dead letters are not allowed to return to their stream."""
    refused = np.zeros(page.count, np.bool_)
    if options.to is None:
        codes, origins_by_code = _coded_origins(page)
        for code, origin in origins_by_code.items():
            if origin not in open_to:
                refused |= codes == code
    return refused


def _origins(page: DeadLetterPage) -> dict[int, Origin]:
    return _coded_origins(page)[1]


def _coded_origins(page: DeadLetterPage) -> tuple[Index, dict[int, Origin]]:
    """Return (per row the code of its stream and group, these by their code)."""
    streams, groups = (
        pc.fill_null(page.envelope_column(name), b"").dictionary_encode() for name in ("stream", "group")
    )
    stream_names, group_names = streams.dictionary.to_pylist(), groups.dictionary.to_pylist()
    codes = streams.indices.to_numpy().astype(np.int64) * max(1, len(group_names)) + groups.indices.to_numpy()
    pairs = {code: divmod(code, max(1, len(group_names))) for code in np.unique(codes).tolist()}
    return codes, {code: (text(stream_names[a]), text(group_names[b])) for code, (a, b) in pairs.items()}


def _marks(page: DeadLetterPage, stream: str, rows: Index, redrives: Index) -> pa.Array:
    """Return per row the mark of its entry."""
    indices = pa.array(rows)
    blank, empty = pa.scalar(b" ", pa.binary()), pa.scalar(b"", pa.binary())
    times = pa.array(redrives).cast(pa.string()).cast(pa.binary())
    since = pc.fill_null(page.envelope_column("first-failed").take(indices), b"")
    return pc.binary_join_element_wise(
        times, blank, since, blank, pa.scalar(raw(stream) + b"/", pa.binary()), page.ids.take(indices), empty
    )


def _named(stream: bytes, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([stream], pa.binary()))


def _number(value: str) -> int:
    return parse_number(value, COUNT_MAX) or 0
