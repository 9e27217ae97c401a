"""Learns how many entries to request so that a reply has about the wanted size. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_CUT = 100  # factor by which a page is made smaller after a page that was too large


@dataclass
class PageSizer:
    """The size of a page, learned from earlier pages.

    size: entries (or commands) of the next page. largest: its upper limit. page_bytes: target size of a reply. growth:
    factor by which a page may be larger than the one before.
    """

    size: int
    largest: int
    page_bytes: int
    growth: int = 10

    def learn(self, entries: int, received: int) -> None:
        """Learn from a reply with this number of entries and bytes. A reply without entries changes nothing."""
        if entries:
            fitting = self.page_bytes * entries // max(1, received)
            self.size = max(1, min(self.largest, self.growth * self.size, fitting))

    def too_large(self, requested: int | None = None) -> None:
        """Reduce the size: the reply to `requested` entries (None: a whole page) exceeded the limit."""
        self.size = max(1, (self.size if requested is None else requested) // _CUT)
