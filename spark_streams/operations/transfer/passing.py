"""One pass over the entries of a stream or file: those that the target has are compared, the others are sent.

    source   |--- already ---|------- sent -------|          each entry is read once, in the order of the IDs
    target   |---------------|                                 the target's last ID, read before the pass

Entries are appended under their IDs:

    XINFO STREAM            the target's last-generated ID: entries up to it are there, entries above it are missing
    MULTI   XADD …   EXEC   a page of entries: all of them are written, or none
    connection lost         read the ID again: it says which case it was

IDs ascend, so the server refuses an entry that it has, and no state is kept: a pass that was killed is started again,
and continues after the target's last ID. Before the first entry is sent, and at the end, the target's entries are read,
and their digest is compared with that of the source's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.admin.dead_letters import DEAD_LETTER_LIMITS, DeadLetterLimits, entry_pages
from spark_streams.connector.admin.groups import count_between, nth_from
from spark_streams.connector.admin.streams import fetch_shard_sets, require_plain
from spark_streams.connector.errors import (
    CopyMismatchError,
    CopyTargetError,
    InvalidOptionError,
    ServerUnreachableError,
    ShardsError,
)
from spark_streams.connector.keys import is_product_key
from spark_streams.connector.operator_commands import command_on
from spark_streams.connector.wire.connection import ReplyError, Server, pack
from spark_streams.connector.wire.replies import execute_packed, is_id_refusal, is_no_such_key
from spark_streams.connector.wire.scan import missing
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import ends_in, read_stream_state, stream_states
from spark_streams.operations.groups.position import GroupTarget
from spark_streams.operations.transfer.transferred import Digest, TransferEntry, TransferRules

Range = tuple[StreamId, StreamId]  # both IDs included


def find_range(
    server: Server, stream: str, begin: GroupTarget | None, end: GroupTarget | None, newest: int | None, now_ms: int
) -> Range:
    """Return the range of these options, up to the stream's present last ID. begin: the first entry, if it is an ID;
    end: the last one; a time, also in the future, is the first entry of that time or later, which `end` excludes;
    newest: only this many entries at the end of the range.

    Raises ShardsError for a sharded stream, StreamMissingError, StreamStateError, InvalidOptionError, ServerError."""
    if shard_set := fetch_shard_sets(server, [stream]).get(stream):
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in {shard_set.count} shards, which are streams of their own; "
            f"name each of them, for example {shard_set.names[0]!r} ({command_on(stream, 'shards')} lists them)"
        )
    head = stream_states(server, [stream])[stream]
    if not head.exists:
        raise missing(server, stream, "list all streams: rstream streams")
    first, last = MIN_ID, head.last
    for target in (begin, end):
        if target is not None and (target.entries is not None or target.end == "latest"):
            raise InvalidOptionError(
                f"{target.text!r} is neither an entry ID nor a time; for the newest entries use --last N"
            )
    if end is not None:
        last = min(end.id, last) if end.id else end.position(server, stream, head, max(now_ms, end.at_ms or 0))
    if begin is not None:
        now_ms = max(now_ms, begin.at_ms or 0)
        position = begin.position(server, stream, head, now_ms) if begin.id is None else MIN_ID
        first = begin.id or (position.next() if MIN_ID < position < MAX_ID else position)
    if newest is not None:
        below = nth_from(server, stream, last, -newest)
        first = max(first, below.next() if below > MIN_ID else MIN_ID)
    return first, last


def stream_pages(
    session: Session, stream: str, within: Range, limits: DeadLetterLimits = DEAD_LETTER_LIMITS
) -> Iterator[list[TransferEntry]]:
    """Yield the entries of the range. Raises ServerError."""
    for page in entry_pages(session, stream, *within, limits):
        yield [TransferEntry(StreamId.parse(entry_id), fields) for entry_id, fields in page]


@dataclass(frozen=True)
class TargetState:
    """State of the target stream."""

    last: StreamId  # its last-generated ID
    length: int = 0
    exists: bool = False
    entry: TransferEntry | None = None  # its last entry; None: it has none

    def holds(self, entry: TransferEntry, same_fields: bool) -> bool:
        """Whether this is the last entry, and no later ID was generated. same_fields: with these bytes."""
        own = self.entry
        return own is not None and own.id == self.last == entry.id and (not same_fields or own.fields == entry.fields)


def require_writable(server: Server, stream: str) -> None:
    """Raise InvalidOptionError for a key of the product, ShardsError for a sharded stream."""
    if is_product_key(stream):
        raise InvalidOptionError(f"{stream!r} is a key of spark-streams; name another target")
    require_plain(server, stream)


def fetch_target(server: Server, stream: str) -> TargetState:
    """Return the state of the target. Raises WrongKeyTypeError, ServerReplyError."""
    [reply] = server.execute_all([("XINFO", "STREAM", stream)], is_no_such_key)
    state = read_stream_state(server, stream, reply)
    ends = ends_in(reply) if state.length else None
    return TargetState(state.last, state.length, state.exists, None if ends is None else TransferEntry(*ends.last))


class Appender:
    """Appends pages of entries with ascending IDs to a stream. last: the target's last ID."""

    def __init__(self, session: Session, stream: str, last: StreamId) -> None:
        self._session, self._stream = session, stream
        self._last = last
        self._in_doubt = False  # whether a reply was lost

    def append(self, entries: Sequence[TransferEntry]) -> None:
        """Append the entries. Raises CopyTargetError if another client writes to the stream, ServerError."""
        self._session.renew_login()
        self._session.run(lambda server: self._append(server, entries))
        self._last = entries[-1].id

    def _append(self, server: Server, entries: Sequence[TransferEntry]) -> None:
        if self._in_doubt:
            last = fetch_target(server, self._stream).last
            if last < self._last:
                raise CopyTargetError(
                    f"stream {self._stream!r} at {server.address} has lost the entries after {last}: its server was "
                    "replaced or restarted without them; run the same command again, it continues after that entry"
                )
            entries = [entry for entry in entries if entry.id > last]
        self._in_doubt = True
        if entries:
            requests = b"".join([pack("XADD", self._stream, bytes(entry.id), *entry.fields) for entry in entries])
            replies = execute_packed(server.connection_for(self._stream), requests, len(entries)) or ()
            for entry, reply in zip(entries, replies, strict=True):
                if isinstance(reply, ReplyError):
                    self._require_written(server, entry, reply)
        self._in_doubt = False

    def _require_written(self, server: Server, entry: TransferEntry, refusal: ReplyError) -> None:
        """Raise the named error of a refused entry, unless the stream holds this entry: a request whose connection
        broke was executed later."""
        if not is_id_refusal(refusal):
            raise server.error_of(refusal, ("XADD", self._stream, bytes(entry.id)))
        entry_id = bytes(entry.id)
        if server.execute("XRANGE", self._stream, entry_id, entry_id) != [[entry_id, list(entry.fields)]]:
            raise CopyTargetError(
                f"stream {self._stream!r} at {server.address} refuses entry {entry.id}, because another client adds "
                "entries to it; stop that client, or name another target"
            )


NEW = TargetState(MIN_ID)
_PAGES_A_SECOND = 10  # under a rate


@dataclass
class Passed:
    """Counts of a pass."""

    already: int = 0  # entries that the target had
    begin: StreamId | None = None  # the first selected one of them
    sent: int = 0  # entries
    skipped: int = 0  # by the transform
    digest: Digest = field(default_factory=Digest)  # of the entries that the target must hold
    seconds: float = 0.0  # that it took

    def facts(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        rate = round(self.sent / self.seconds) if self.seconds else 0
        counts = {"already": self.already, "sent": self.sent, "skipped": self.skipped}
        return {**counts, "seconds": round(self.seconds, 3), "entries_per_second": rate}


def transfer(
    pages: Iterable[Sequence[TransferEntry]],
    rules: TransferRules,
    position: StreamId,
    send: Callable[[Sequence[TransferEntry]], None],
    tell: Callable[..., None],
    check: Callable[[TransferEntry | None, Digest], None] = lambda last, digest: None,
) -> Passed:
    """Send the selected entries above a position. tell: receives the progress; check: is called once before the first
    entry is sent, with the last selected entry up to the position, and the digest of all of them.

    With a transform, entries of the target are not transformed again, and the digest is that of the sent ones.
    Raises the errors of `pages`, `send`, `check` and the transform."""
    passed, begin = Passed(), time.monotonic()
    paced_from: float | None = None
    last: TransferEntry | None = None  # the last selected entry up to the position
    unchecked = True
    for page in pages:
        fresh: list[TransferEntry] = []
        for entry in filter(rules.select, page):
            if entry.id <= position:
                passed.already, last, passed.begin = passed.already + 1, entry, passed.begin or entry.id
                if rules.transform is None:
                    passed.digest.add(entry)
            elif passed.sent + len(fresh) == rules.limit:
                break
            elif (changed := rules.change(entry)) is None:
                passed.skipped += 1
            else:
                fresh.append(changed)
        if fresh and unchecked:
            check(last, passed.digest)
            unchecked = False
        for part in _parts(fresh, rules.rate):
            paced_from = paced_from or time.monotonic()
            send(part)
            passed.sent += len(part)
            for entry in part:
                passed.digest.add(entry)
            if rules.rate is not None:
                time.sleep(max(0.0, paced_from + passed.sent / rules.rate - time.monotonic()))
            tell(passed.sent, None)
        if passed.sent == rules.limit:
            break
    if unchecked:
        check(last, passed.digest)
    passed.seconds = time.monotonic() - begin
    return passed


@dataclass(frozen=True)
class Filled:
    """Result of a transfer to a stream. state: of the target before it; actual: digest of the target's entries
    afterwards, None for a dry run."""

    state: TargetState
    passed: Passed
    actual: Digest | None

    @property
    def is_equal(self) -> bool:
        """Whether the target holds the same entries as the source."""
        return self.actual is not None and self.actual.facts() == self.passed.digest.facts()


def fill(
    session: Session,
    stream: str,
    pages: Iterable[Sequence[TransferEntry]],
    rules: TransferRules,
    act: bool,
    tell: Callable[..., None],
) -> Filled:
    """Append the selected entries to a stream, and read them back; unless `act`, only read and count them.

    Raises the errors of `transfer`, InvalidOptionError, ShardsError, ServerError."""
    try:
        session.run(lambda server: require_writable(server, stream))
        state = session.run(lambda server: fetch_target(server, stream))
    except ServerUnreachableError:
        if act or not session.address.forgets:
            raise
        state = NEW  # the bundled engine does not run, and --yes starts it
    check = partial(_require_own, session, stream, state, rules)
    send = Appender(session, stream, state.last).append if act else lambda entries: None
    passed = transfer(pages, rules if act else replace(rules, rate=None), state.last, send, tell, check)
    if rules.transform is not None and passed.begin is not None:  # an earlier run has skipped some
        below = passed.begin.previous()
        passed.already = session.run(lambda server: count_between(server, stream, below, state.last))
    return Filled(state, passed, _read_back(session, stream, passed.digest) if act else None)


def _require_own(
    session: Session,
    stream: str,
    state: TargetState,
    rules: TransferRules,
    last: TransferEntry | None,
    expected: Digest,
) -> None:
    """Raise CopyTargetError if the target does not hold the selected entries up to its last ID. last: the last of
    them; expected: their digest, empty with a transform."""
    if last is None:
        return
    where = f"stream {stream!r} at {session.address}"
    if not state.holds(last, same_fields=rules.transform is None):
        last_entry = "no entry" if state.entry is None else f"entry {state.entry.id}"
        raise CopyTargetError(
            f"{where} has the last ID {state.last}, and its last entry ({last_entry}) is not the selected entry of the "
            f"source below it ({last.id}), so another program has written to it, or removed entries; name another "
            "target, or copy only later entries (--from)"
        )
    actual = _read_back(session, stream, expected)
    if actual.facts() != expected.facts():
        raise CopyTargetError(
            f"{where} has {actual.count:,} entries from {expected.first} to {state.last} with checksum "
            f"{actual.facts()['checksum']}, and {expected.count:,} entries with {expected.facts()['checksum']} are "
            "selected up to there; repeat the options of the earlier run, name another target, or copy only later "
            f"entries (--from {state.last})"
        )


def _read_back(session: Session, stream: str, expected: Digest) -> Digest:
    """Return the digest of the stream's entries between the first and the last expected one."""
    actual = Digest()
    if expected.first is not None and expected.last is not None:
        actual.add_all(stream_pages(session, stream, (expected.first, expected.last)))
    return actual


def require_equal(filled: Filled, where: str) -> None:
    """Raise CopyMismatchError if the target does not hold the same entries as the source. where: the target."""
    if filled.is_equal or filled.actual is None:
        return
    expected, actual = filled.passed.digest.facts(), filled.actual.facts()
    raise CopyMismatchError(
        f"{where} has {actual['entries']:,} entries from {expected['first']} to {expected['last']} with checksum "
        f"{actual['checksum']}, and the source has {expected['entries']:,} with {expected['checksum']}: entries of the "
        "target were deleted, trimmed or added by another program, or the source has lost some since an earlier run; "
        "copy to a new stream"
    )


def _parts(entries: list[TransferEntry], rate: int | None) -> list[list[TransferEntry]]:
    """Return the entries in parts of a tenth of a second."""
    size = len(entries) if rate is None else max(1, rate // _PAGES_A_SECOND)
    return [entries[start : start + size] for start in range(0, len(entries), size or 1)]
