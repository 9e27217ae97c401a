"""How many things to ask a server for, so that a reply is about as large as wanted. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_CUT = 100  # a page is this many times smaller than one that was too large


@dataclass
class PageSizer:
    """A page's size, learned from the pages before it.

    size: entries (or commands) of the next page; largest: at most so many; page_bytes: of a reply, as far as entries
    are like those before them; growth: a page has at most so many times the entries of the one before.
    """

    size: int
    largest: int
    page_bytes: int
    growth: int = 10

    def learn(self, entries: int, received: int) -> None:
        """So many entries came in a reply of so many bytes. No entries tell nothing."""
        if entries:
            fitting = self.page_bytes * entries // max(1, received)
            self.size = max(1, min(self.largest, self.growth * self.size, fitting))

    def too_large(self, asked: int | None = None) -> None:
        """The reply to `asked` entries (None: to a whole page) was too large to be held."""
        self.size = max(1, (self.size if asked is None else asked) // _CUT)
