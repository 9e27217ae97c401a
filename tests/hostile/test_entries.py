"""No entry, key or name that a stranger writes ends a query, a batch read or a command; good entries are read.

`python -m tests.hostile.entries` goes on for as long as it is told to.
"""

from __future__ import annotations

from tests.hostile.entries import Soak
from tests.servers import Server


def test_hostile_entries_keys_and_names_end_no_reader(server: Server) -> None:
    """Seeds of the soak, a few rounds each; a seed that once failed stays in the list."""
    for seed in range(6):
        with Soak(server, seed) as soak:
            for _ in range(3):
                soak.round()
        assert soak.tally.problems == []
        assert soak.tally.read > 0
        assert soak.tally.sent > 0
