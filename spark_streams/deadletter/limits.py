"""How many dead letters are read or written at a time. No option: tests take smaller ones. Times were measured with
dead letters of 100 bytes on redis-server, both on one machine of two cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeadLetterLimits:
    """Of whoever reads or posts dead letters.

    first_page: dead letters, while nobody knows how large they are
    largest_page: dead letters that are moved in one transaction. 500 at a time come to 111,000 a second, 2,000 to
        129,000 (16 ms each), 8,000 to 132,000
    page_bytes: of a page, as far as these are like those before them
    most_bytes: of a reply; beyond it the page is asked for again in small pieces

    post_entries: of one transaction, which is tried again where others append meanwhile. 100 at a time come to 66,000
        a second, 500 to 71,000 (7 ms each), more to less
    post_bytes: of the fields of these; one may have more
    """

    first_page: int = 200
    largest_page: int = 2_000
    page_bytes: int = 4 << 20
    most_bytes: int = 64 << 20
    post_entries: int = 500
    post_bytes: int = 8 << 20


DEAD_LETTER_LIMITS = DeadLetterLimits()
