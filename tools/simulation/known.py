"""Failures that are documented: the soak counts them, and goes on.

Each is a row under Limits in docs/reference/guarantees.md."""

from __future__ import annotations

import re

# A pattern of the failure's kind, and what the row says.
KNOWN: dict[str, str] = {
    r"before its late group": "what says where a pattern's streams begin was taken away before there was a checkpoint",
    r"^twice .*server set back": "a lenient query takes a server from before its group was made for one made anew",
    r"^twice \| (deleted\+)?(passed over|vanished)(\+trimmed)? .*group (made anew|set back)": (
        "a group is moved while a batch is taken"
    ),
    r"^twice \| trimmed \| .*group made anew amid a trigger": ("the same, and what was read twice is trimmed later"),
    r"^twice \| passed over .*checkpoint set back.*evicted sink": "the ledger is gone, the checkpoint an older copy",
    r"^twice \| passed over .*vanished \| lenient": "a batch is a range of ids, its stream made anew",
    r"^uncounted \| trimmed\+vanished \| after trimmed\+vanished \|": "a stream made anew is taken for the same one",
    r"^uncounted \| passed over \| after others read\+vanished \|": "made anew before there was a checkpoint",
    r"^(silent|uncounted) \| (deleted\+)?passed over .*group (set forward|made anew).*others read": (
        "others read from a group that was moved"
    ),
    r"^(silent|uncounted) \| trimmed \| .*others read.*trimmed": "a shared group is trimmed while a batch is taken",
    r"^uncounted \| (deleted|trimmed|deleted\+trimmed) \| .*(evicted notes|checkpoint set back.*server set back)": (
        "what tasks have noted is gone"
    ),
    r"^uncounted \| (deleted|trimmed) \| .*group made anew.*vanished \|": (
        "a group is made anew while the query begins on a stream that was made anew"
    ),
    r"^uncounted \| (deleted|trimmed) \| .*group made anew amid a trigger.*\| lenient": (
        "a group is made anew while a batch is taken"
    ),
    r"^uncounted \| passed over .*group made anew .*once noAck": "a group is made anew while noAck is given up",
    r"^silent \| trimmed \| .*entries taken from us.*trimmed": "a shared group is set by hand, its stream trimmed",
    r"^silent \| trimmed \| .*checkpoint set back.*trimmed.* noAck$": "an older copy lacks how much its last batch had",
    r"^(silent|uncounted) \| passed over \| after checkpoint set back\+server set back \|": (
        "an older copy of the checkpoint, and a server from before the commit mark of an acknowledged batch"
    ),
    r"^(silent|uncounted) \| passed over \| after .*checkpoint set back.*evicted committed.*others read": (
        "an older copy of the checkpoint of a shared group, and the commit mark is gone"
    ),
    r"^(early|silent) .*entries given to us.*evicted committed": "entries are handed over, the commit mark is gone",
    r"^early \| after entries given to us\+others read \| strict plain$": (
        "entries are handed over within the range of a batch of a shared group that is not acknowledged yet"
    ),
    r"^reordered .*entries taken from us": "entries are claimed while it takes a batch: it reads others later",
    r"^reordered .*(checkpoint set back|server set back)": "batches are made anew after a set-back",
}


def why(kind: str) -> str | None:
    """What is wrong, where this kind of failure is known."""
    return next((wrong for pattern, wrong in KNOWN.items() if re.search(pattern, kind)), None)
