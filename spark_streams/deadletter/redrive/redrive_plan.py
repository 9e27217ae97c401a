"""The options of a redrive, and what they mean for a page of dead letters. Pure: pages in, requests out.

A dead letter that was sent back too often goes to the parking stream, whole; one that a transform does not want stays;
so does one that is to go where it came from and does not say where, or names the dead-letter stream or the parking
stream: it would come back as it is; and one whose stream is not open to it (destinations.py). Every other one becomes
an entry again, its original fields and the mark (envelope.py), in the stream that it came from or another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.deadletter import transform
from spark_streams.deadletter.criteria import Criteria
from spark_streams.deadletter.envelope import MARK, raw, text
from spark_streams.deadletter.kind_counts import KindCounts
from spark_streams.deadletter.page import DeadLetterPage, by_value
from spark_streams.deadletter.redrive.destinations import Origin
from spark_streams.deadletter.redrive.page_plan import PagePlan
from spark_streams.deadletter.transform import Transform
from spark_streams.errors import InvalidOptionError
from spark_streams.model.keys import is_product_key
from spark_streams.model.numbers import COUNT_MAX, parse_number
from spark_streams.wire.entries.encode import Requests, encode_xadd
from spark_streams.wire.entries.lines import Index, Mask

MAX_REDRIVES = 3
PARKED = ":parked"


@dataclass(frozen=True)
class RedriveOptions:
    """stream: of the dead letters; to: where entries go, None for where they came from; limit: how many to move, all;
    rate: of them in a second, as fast as it goes; max_redrives: how often one is sent back at most; parking: the stream
    for those beyond; transform: `module:function` that repairs dead letters, none; allow: the streams that entries may
    go back to, with * ? [], by default those that the dead letters' group reads. The digest has these names."""

    stream: str
    criteria: Criteria = field(default_factory=Criteria)
    to: str | None = None
    limit: int | None = None
    rate: int | None = None
    max_redrives: int = MAX_REDRIVES
    parking: str | None = None
    transform: str | None = None
    allow: tuple[str, ...] = ()

    def checked(self) -> RedriveOptions:
        """With the parking stream named. Raises InvalidOptionError."""
        for what, name in (("sent to", self.to), ("parked in", self.parking)):
            if name is not None and is_product_key(name):
                raise InvalidOptionError(
                    f"dead letters of {self.stream!r} would be {what} {name!r}: keys that begin with rstream: are the "
                    "product's own, and a redrive never writes there; name another stream"
                )
        if self.to is not None and self.allow:
            raise InvalidOptionError(f"to={self.to!r} names the only destination: give it without allow")
        if self.to == self.stream:
            raise InvalidOptionError(
                f"dead letters of {self.stream!r} would be sent to {self.to!r} itself: name another"
            )
        if self.parking == self.stream:
            raise InvalidOptionError(f"dead letters of {self.stream!r} would be parked in {self.parking!r} itself")
        sure = self if self.parking is not None else replace(self, parking=self.stream + PARKED)
        if sure.to == sure.parking:
            raise InvalidOptionError(
                f"dead letters of {self.stream!r} would be sent to {sure.to!r}, where they are parked"
            )
        return sure

    def digest(self) -> str:
        """The same for the same options, over all versions; how fast is no part of them."""
        told = {**asdict(self), "rate": None}
        if not self.allow:
            del told["allow"]  # as versions before it wrote it
        known = json.dumps(told, sort_keys=True).encode("utf-8", "surrogatepass")
        return hashlib.sha256(known).hexdigest()[:16]


def origins(page: DeadLetterPage, options: RedriveOptions) -> set[Origin]:
    """Where dead letters of a page would go back to; none if the options name one stream for all."""
    if options.to is not None:
        return set()
    return set(_origins(page).values())


def plan_page(
    page: DeadLetterPage,
    options: RedriveOptions,
    repair: Transform | None,
    room: int | None,
    open_to: Collection[Origin] = (),
) -> PagePlan:
    """The dead letters of a page that are meant, at most `room` of them. open_to: of `origins`, those that may get
    entries. Raises TransformError."""
    meant_rows = np.flatnonzero(options.criteria.mask(page) & page.are_dead_letters())
    redrives = by_value(page.told("redrives").take(pa.array(meant_rows)), _number).astype(np.int64)
    beyond = redrives >= options.max_redrives
    homes, closed = _are_homeless(page, options)[meant_rows], _are_refused(page, options, open_to)[meant_rows]
    stay = ~beyond & (homes | closed)
    last = page.count - 1
    homeless, refused = meant_rows[~beyond & homes], meant_rows[~beyond & closed & ~homes]
    meant, redrives, beyond = meant_rows[~stay], redrives[~stay], beyond[~stay]
    if room is not None and len(meant) > room:
        meant, redrives, beyond = meant[:room], redrives[:room], beyond[:room]
        last = int(meant[-1]) if room else -1
        homeless, refused = homeless[homeless <= last], refused[refused <= last]
    parked, moved, again = meant[beyond], meant[~beyond], redrives[~beyond] + 1
    left = 0
    if repair is None:
        fields = page.originals(moved)
    else:
        kept, fields = transform.apply(repair, page, moved)
        again = again[np.isin(moved, kept)]
        left = len(moved) - len(kept)
        moved = kept
    counts = KindCounts()
    requests, targets = [], []
    to: list[bytes] = []
    if len(moved):
        if options.to is None:
            target = page.told("stream").take(pa.array(moved)).dictionary_encode()
        else:
            target = _named(raw(options.to), len(moved))
        to = target.dictionary.to_pylist()
        targets.append(target.indices.to_numpy())
        encoded, _ = encode_xadd(target, [MARK], [_marks(page, options.stream, moved, again)], first=fields)
        requests.append(encoded)
        destination = options.to if options.to is not None else page.told("stream")
        counts.add(page.ids, ["move", destination, page.told("stage"), page.told("reason")], moved)
    if len(parked):
        parking = raw(options.parking or "")
        to = list(dict.fromkeys([*to, parking]))
        targets.append(np.full(len(parked), to.index(parking)))
        encoded, _ = encode_xadd(parking, [], [], first=page.whole(parked))
        requests.append(encoded)
        counts.add(page.ids, ["park", text(parking), page.told("stage"), page.told("reason")], parked)
    counts.add(page.ids, ["stay", page.told("stream"), page.told("stage"), page.told("reason")], homeless)
    counts.add(page.ids, ["refuse", page.told("stream"), page.told("stage"), page.told("reason")], refused)
    rows = np.concatenate([moved, parked])
    ids = page.ids.take(pa.array(rows)).to_pylist()
    target_of = np.concatenate([np.empty(0, np.int64), *targets])
    sizes = len(moved), len(parked), left, len(homeless), len(refused)
    return PagePlan(page, rows, ids, Requests.joined(requests), to, target_of, *sizes, counts, last)


def _are_homeless(page: DeadLetterPage, options: RedriveOptions) -> Mask:
    """Which dead letters are to go where they came from, and cannot."""
    if options.to is not None:
        return np.zeros(page.count, np.bool_)
    nowhere = ("", options.stream, options.parking)
    return by_value(page.told("stream"), lambda stream: stream in nowhere).astype(np.bool_)


def _are_refused(page: DeadLetterPage, options: RedriveOptions, open_to: Collection[Origin]) -> Mask:
    """Which dead letters are to go where they came from, and may not."""
    refused = np.zeros(page.count, np.bool_)
    if options.to is None:
        codes, known = _coded_origins(page)
        for code, origin in known.items():
            if origin not in open_to:
                refused |= codes == code
    return refused


def _origins(page: DeadLetterPage) -> dict[int, Origin]:
    return _coded_origins(page)[1]


def _coded_origins(page: DeadLetterPage) -> tuple[Index, dict[int, Origin]]:
    """(per row the number of its stream and group, these by their number)."""
    streams, groups = (pc.fill_null(page.told(name), b"").dictionary_encode() for name in ("stream", "group"))
    stream_names, group_names = streams.dictionary.to_pylist(), groups.dictionary.to_pylist()
    codes = streams.indices.to_numpy().astype(np.int64) * max(1, len(group_names)) + groups.indices.to_numpy()
    pairs = {code: divmod(code, max(1, len(group_names))) for code in np.unique(codes).tolist()}
    return codes, {code: (text(stream_names[a]), text(group_names[b])) for code, (a, b) in pairs.items()}


def _marks(page: DeadLetterPage, stream: str, rows: Index, redrives: Index) -> pa.Array:
    """Per row what its entry will know of its past."""
    kept = pa.array(rows)
    blank, empty = pa.scalar(b" ", pa.binary()), pa.scalar(b"", pa.binary())
    times = pa.array(redrives).cast(pa.string()).cast(pa.binary())
    since = pc.fill_null(page.told("first-failed").take(kept), b"")
    return pc.binary_join_element_wise(
        times, blank, since, blank, pa.scalar(raw(stream) + b"/", pa.binary()), page.ids.take(kept), empty
    )


def _named(stream: bytes, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([stream], pa.binary()))


def _number(value: str) -> int:
    return parse_number(value, COUNT_MAX) or 0
