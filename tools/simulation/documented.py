"""Failures that are documented: the soak counts them, and continues.

Each is a row of docs/reference/unnoticed.md, data-loss.md or guarantees.md. A pattern is as narrow as its row: what the
row does not say is a failure. Most limits need no pattern, because the powers record which entries they are true of."""

from __future__ import annotations

import re

# Pattern of the failure's kind → name of the limit.
KNOWN: dict[str, str] = {
    r"before its late group \| after .*evicted (begun|first)": (
        "the stored start of a pattern's streams was deleted before the first checkpoint"
    ),
    r"^twice .*(others read|entries taken from us).*server set back": (
        "a shared group was restored without older acknowledgements or deliveries"
    ),
    r"^twice .*evicted committed.*server set back": "a server was restored that has no commit mark",
    r"^twice (?=.*group (created again|set back))(?=.*(others read|entries taken from us))": (
        "a shared group goes on where it was set, and reads entries again"
    ),
    r"^twice \| passed over(\+trimmed|\+deleted)* \| .*checkpoint put back": (
        "the newer checkpoint is used again after an older copy, as its error allows"
    ),
    r"^(silent|uncounted) \| (deleted|trimmed) \| .*group set forward.*others read": (
        "a shared group is set forward over removed entries"
    ),
    r"^uncounted \| trimmed\+vanished \| after .*others read.*vanished \| lenient": (
        "the group of a lenient query is missing, and others had read in it"
    ),
    r"^uncounted \| (deleted|trimmed|deleted\+trimmed) \| after .*(commits lost|checkpoint set back)": (
        "an entry was removed before its committed batch was read again"
    ),
    r"^uncounted \| passed over \| .*checkpoint set back.*maxDeliveries": (
        "an older copy of the checkpoint does not know which entries were set aside"
    ),
    r"^reordered .*(checkpoint set back|server set back)": "batches are planned again after a set-back",
}


def reason_of(kind: str) -> str | None:
    """Return the name of the limit that explains this kind of failure, or None."""
    return next((name for pattern, name in KNOWN.items() if re.search(pattern, kind)), None)
