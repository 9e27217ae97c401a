"""Limits of pages and transactions of dead letters. They are not options; tests use smaller ones. Times were measured
with dead letters of 100 bytes on redis-server, on one machine of two cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeadLetterLimits:
    """Limits for reading and posting dead letters.

    first_page: dead letters of the first page, when their size is not known yet
    largest_page: dead letters that are moved in one transaction. 500 at a time: 111,000 a second; 2,000: 129,000
        (16 ms each); 8,000: 132,000
    page_bytes: bytes of a page, estimated from the pages before it
    max_bytes: bytes of a reply; beyond it, the page is read again in smaller pieces

    post_entries: dead letters of one transaction, which is tried again if other clients append meanwhile. 100 at a
        time: 66,000 a second; 500: 71,000 (7 ms each); more are slower
    post_bytes: bytes of their fields; a single entry may have more
    """

    first_page: int = 200
    largest_page: int = 2_000
    page_bytes: int = 4 << 20
    max_bytes: int = 64 << 20
    post_entries: int = 500
    post_bytes: int = 8 << 20


DEAD_LETTER_LIMITS = DeadLetterLimits()
