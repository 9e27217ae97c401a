"""Failures that are documented: the soak counts them, and continues.

Each is a row of docs/reference/unnoticed.md."""

from __future__ import annotations

import re

# Pattern of the failure's kind → summary of the row.
KNOWN: dict[str, str] = {
    r"before its late group": "the stored start of a pattern's streams was deleted before the first checkpoint",
    r"^twice .*server set back": "a lenient query takes a server from before its group existed for a new one",
    r"^twice \| (deleted\+)?(passed over|vanished)(\+trimmed)? .*group (created again|set back)": (
        "a group is moved while a batch is taken"
    ),
    r"^twice \| (flushed|trimmed|deleted) \| .*group (created again|set back)": (
        "the same, and the entries that were read twice are removed later"
    ),
    r"^twice \| passed over .*checkpoint set back.*evicted sink": "the ledger is missing, the checkpoint is older",
    r"^twice .*checkpoint put back": "an older copy of the checkpoint had the entries delivered again",
    r"^twice .*evicted attempts.*(maxDeliveries|once noAck)": (
        "the record of failed batches was deleted: its batch is read again"
    ),
    r"^pending \| ((deleted|trimmed) \| after .*(checkpoint|group) set back|trimmed \| .*once noAck$)": (
        "an entry left the stream while its group was set back"
    ),
    r"^(silent|uncounted) \| trimmed \| .*group destroyed\+group set forward": (
        "a group is created again after rstream groups seek, and the stream trimmed, before the query runs"
    ),
    r"^pending \| pending \| after .*evicted attempts": "the record of failed batches was deleted: it is read again",
    r"^uncounted \| (deleted|trimmed|deleted\+trimmed) \| after .*(commits lost|checkpoint set back)": (
        "an entry was read and acknowledged before its batch was read again"
    ),
    r"^uncounted \| passed over\+vanished .*vanished": "no committed batch had read the stream that was created again",
    r"^named again \| DataLossError: group _ of stream _ is at #, above .*others read": (
        "another consumer joins the group, reads and leaves before the query's next batch"
    ),
    r"^false alarm \| DataLossError: group _ of stream _ is at #, above the checkpoint_spark": (
        "the same, and the query is stopped and started before the next batch"
    ),
    r"^named again \| DataLossError.*at least": "an XDEL above the position of a shared group",
    r"^twice \| passed over .*(vanished|flushed)(\+trimmed)? \| lenient": (
        "a batch is a range of IDs, its stream was created again"
    ),
    r"^(silent|uncounted) \| (trimmed|deleted)(\+vanished)? \| after .*vanished \|": (
        "a new stream is taken for the same one"
    ),
    r"^silent \| (deleted|trimmed) \| after (deleted|trimmed)\+server set back \|": (
        "a server returns to an older state, and as many entries are added as it has lost"
    ),
    r"^uncounted \| passed over \| after others read\+vanished \|": "created again before the first checkpoint",
    r"^uncounted \| passed over \| after (evicted \w+\+)?flushed(\+server set back|\+others read)? \| lenient": (
        "deleted before the first checkpoint: `latest` is the end at that moment, or the clock was set back"
    ),
    r"^(silent|uncounted) \| (deleted\+)?passed over .*group (set forward|created again).*others read": (
        "others read from a group that was moved"
    ),
    r"^(silent|uncounted) \| trimmed \| .*others read.*trimmed": "a shared group is trimmed while a batch is taken",
    r"^uncounted \| (deleted|trimmed|deleted\+trimmed) \| .*(evicted notes|checkpoint set back.*server set back)": (
        "the notes of tasks are missing"
    ),
    r"^uncounted \| (deleted|trimmed) \| .*group created again.*vanished \|": (
        "a group is created again while the query starts on a stream that was created again"
    ),
    r"^(silent|uncounted) \| (deleted|trimmed) \| .*group created again amid a trigger": (
        "a group is created again while a batch is taken"
    ),
    r"^uncounted \| passed over .*group created again .*once noAck": "a group is created again while noAck is removed",
    r"^false alarm \| DataLossError: stream _: at least # entry above": "an XDEL above a shared group, before it began",
    r"^false alarm \| DataLossError: stream _: # entr(y|ies) above # .* \| strict once noAck$": (
        "a batch with an estimated end is skipped"
    ),
    r"^silent \| trimmed \| .*entries taken from us.*trimmed": "a shared group is set by hand, its stream trimmed",
    r"^silent \| trimmed \| .*checkpoint set back.*trimmed.* noAck$": "an older copy lacks the size of its last batch",
    r"^(silent|uncounted) \| passed over \| after checkpoint set back\+server set back \|": (
        "an older copy of the checkpoint, and a server from before the commit mark of an acknowledged batch"
    ),
    r"^(silent|uncounted) \| passed over \| after .*checkpoint set back.*evicted committed.*others read": (
        "an older copy of the checkpoint of a shared group, and the commit mark is missing"
    ),
    r"^(early|silent) .*entries given to us.*evicted committed": "entries are handed over, the commit mark is missing",
    r"^early \| after entries given to us\+others read \| strict plain$": (
        "entries are handed over within the range of a batch of a shared group that is not acknowledged yet"
    ),
    r"^uncounted \| passed over \| after group created again.*\+group set back \| lenient": (
        "a group is set back by hand after rstream groups seek: the seek decides"
    ),
    r"^uncounted \| passed over \| after (flushed\+)?group destroyed(\+server set back)? \| lenient": (
        "the group was destroyed before Spark logged an offset: it begins at startingOffsets"
    ),
    r"^reordered .*entries taken from us": "entries are claimed while the query takes a batch: it reads others later",
    r"^reordered .*(checkpoint set back|server set back)": "batches are planned again after a set-back",
}


def reason_of(kind: str) -> str | None:
    """Return the documented reason of this kind of failure, or None."""
    return next((wrong for pattern, wrong in KNOWN.items() if re.search(pattern, kind)), None)
