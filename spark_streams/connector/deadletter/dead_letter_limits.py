"""Limits for reading and posting dead letters: apart, because a query's limits have them, and need no numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeadLetterLimits:
    """Limits for reading and posting dead letters. They are not options; tests use smaller ones.

    Times were measured with dead letters of 100 bytes on redis-server, on one machine of two cores.
    """

    first_page: int = 200  # dead letters of the first page, when their size is not known yet
    # Of one transaction. 500 at a time: 111,000 a second; 2,000: 129,000 (16 ms each); 8,000: 132,000.
    largest_page: int = 2_000
    page_bytes: int = 4 << 20  # of a page, estimated from the pages before it
    max_bytes: int = 64 << 20  # of a reply; beyond it, the page is read again in smaller pieces
    post_entries: int = 500  # of one transaction, which may be repeated. 100: 66,000 a second; 500: 71,000 (7 ms each)
    post_bytes: int = 8 << 20  # of their fields; a single entry may have more


DEAD_LETTER_LIMITS = DeadLetterLimits()
