"""How many dead letters are read or written at a time. No option: tests take smaller ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LetterLimits:
    """Of whoever reads or posts dead letters.

    first_page: letters, while nobody knows how large they are
    largest_page: letters; a page is moved in one transaction, and the server answers nobody else meanwhile
    page_bytes: of a page, as far as its letters are like those before them
    most_bytes: of a reply; beyond it the page is asked for again in small pieces

    post_letters: of one transaction that posts letters; it is held back by nobody, and repeated where others append
    post_bytes: of the fields of these; one letter may have more
    """

    first_page: int = 200
    largest_page: int = 2_000
    page_bytes: int = 4 << 20
    most_bytes: int = 64 << 20
    post_letters: int = 500
    post_bytes: int = 8 << 20


LETTER_LIMITS = LetterLimits()
