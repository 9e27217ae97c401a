"""Failures that are being mended: the soak counts them, and goes on. Empty when all is well."""

from __future__ import annotations

import re

# A pattern of the failure's kind, and what is wrong.
KNOWN: dict[str, str] = {
    r"^(uncounted|silent) .*at-most-once": "at-most-once forgets a loss with what a crash gives up",
    r"before its late group": "what says where a pattern's streams begin was taken away before there was a checkpoint",
    r"^twice .*(flushed|server set back)": "a server that is back from before the group was made has it begin anew",
    r"^false alarm \| LedgerError: .*maxDeliveries": "a batch that the sink has done is set aside",
    r"^uncounted \| passed over .*checkpoint set back.*others read": "a rolled-back checkpoint of a shared group",
}


def why(kind: str) -> str | None:
    """What is wrong, where this kind of failure is known."""
    return next((wrong for pattern, wrong in KNOWN.items() if re.search(pattern, kind)), None)
