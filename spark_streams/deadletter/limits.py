"""How many dead letters are read or written at a time. No option: tests take smaller ones. Times were measured with
letters of 100 bytes on redis-server, both on one machine of two cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LetterLimits:
    """Of whoever reads or posts dead letters.

    first_page: letters, while nobody knows how large they are
    largest_page: letters that are moved in one transaction. 500 at a time come to 111,000 letters/s, 2,000 to 129,000
        (16 ms each), 8,000 to 132,000
    page_bytes: of a page, as far as its letters are like those before them
    most_bytes: of a reply; beyond it the page is asked for again in small pieces

    post_letters: of one transaction, which is tried again where others append meanwhile. 100 at a time come to 66,000
        letters/s, 500 to 71,000 (7 ms each), more to less
    post_bytes: of the fields of these; one letter may have more
    """

    first_page: int = 200
    largest_page: int = 2_000
    page_bytes: int = 4 << 20
    most_bytes: int = 64 << 20
    post_letters: int = 500
    post_bytes: int = 8 << 20


LETTER_LIMITS = LetterLimits()
