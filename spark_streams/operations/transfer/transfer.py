"""One pass over the entries of a stream or file: those that the target has are compared, the others are sent.

    source   |--- already ---|------- sent -------|          each entry is read once, in the order of the IDs
    target   |---------------|                                 the target's last ID, read before the pass

No state is kept: a pass that was killed is started again, and continues after the target's last ID. Before the first
entry is sent, and at the end, the target's entries are read, and their digest is compared with that of the source's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.errors import CopyMismatchError, CopyTargetError, ServerUnreachableError
from spark_streams.connector.wire.session import Session
from spark_streams.operations.transfer.entries import Digest, Entry, Rules
from spark_streams.operations.transfer.reader import stream_pages
from spark_streams.operations.transfer.target import Appender, TargetState, fetch_target, require_writable

NEW = TargetState(MIN_ID)
_PAGES_A_SECOND = 10  # under a rate


@dataclass
class Passed:
    """Counts of a pass. already: entries that the target had; sent: entries; skipped: by the transform; digest: of the
    entries that the target must hold. seconds: that it took."""

    already: int = 0
    sent: int = 0
    skipped: int = 0
    digest: Digest = field(default_factory=Digest)
    seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        rate = round(self.sent / self.seconds) if self.seconds else 0
        counts = {"already": self.already, "sent": self.sent, "skipped": self.skipped}
        return {**counts, "seconds": round(self.seconds, 3), "entries_per_second": rate}


def transfer(
    pages: Iterable[Sequence[Entry]],
    rules: Rules,
    position: StreamId,
    send: Callable[[Sequence[Entry]], None],
    tell: Callable[..., None],
    check: Callable[[Entry | None, Digest], None] = lambda last, digest: None,
) -> Passed:
    """Send the selected entries above a position. tell: receives the progress; check: is called once before the first
    entry is sent, with the last selected entry up to the position, and the digest of all of them.

    With a transform, entries of the target are not transformed again, and the digest is that of the sent ones.
    Raises the errors of `pages`, `send`, `check` and the transform."""
    passed, begin = Passed(), time.monotonic()
    paced_from: float | None = None
    last: Entry | None = None  # the last selected entry up to the position
    unchecked = True
    for page in pages:
        fresh: list[Entry] = []
        for entry in filter(rules.select, page):
            if entry.id <= position:
                passed.already, last = passed.already + 1, entry
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
    session: Session, stream: str, pages: Iterable[Sequence[Entry]], rules: Rules, act: bool, tell: Callable[..., None]
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
    if not act:
        rules = replace(rules, rate=None)
        return Filled(state, transfer(pages, rules, state.last, lambda entries: None, tell, check), None)
    appender = Appender(session, stream, state.last)
    passed = transfer(pages, rules, state.last, appender.append, tell, check)
    return Filled(state, passed, _read_back(session, stream, passed.digest))


def _require_own(
    session: Session, stream: str, state: TargetState, rules: Rules, last: Entry | None, expected: Digest
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


def _parts(entries: list[Entry], rate: int | None) -> list[list[Entry]]:
    """Return the entries in parts of a tenth of a second."""
    size = len(entries) if rate is None else max(1, rate // _PAGES_A_SECOND)
    return [entries[start : start + size] for start in range(0, len(entries), size or 1)]
