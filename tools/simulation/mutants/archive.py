"""Mutants of the archive before the stream, and of the seam between the two."""

from __future__ import annotations

from tools.simulation.mutants.mutant import Mutant

ARCHIVE = (
    Mutant(
        "archive-ends-behind-the-first-entry",
        "connector/source/batch_plan.py",
        "return self.generated if self.first is None else self.first.previous()",
        "return self.generated if self.first is None else self.first",
        "The first entry of a stream is read from the archive, too.",
    ),
    Mutant(
        "archive-has-no-missing-entries",
        "connector/source/archive/history.py",
        "if history.read == END or not removed:",
        "if True:",
        "Entries that are missing between those of the stream are not read.",
    ),
    Mutant(
        "archive-reads-what-the-stream-has",
        "connector/source/history_reader.py",
        "yield from rows_beside(self._archive, task.ranges, seen)",
        "yield from rows_of(self._archive, task.ranges)",
        "Entries that the stream has are read from the archive, too.",
    ),
    Mutant(
        "archive-begins-again-with-each-batch",
        "connector/source/archive/history.py",
        "for part in _range(stream, max(after, begin), min(last, end))",
        "for part in _range(stream, begin, min(last, end))",
        "Each batch begins at the start of the archive.",
    ),
    Mutant(
        "archive-has-no-end",
        "connector/source/archive/history.py",
        "for part in _range(stream, max(after, begin), min(last, end))",
        "for part in _range(stream, max(after, begin), end)",
        "Each batch reads all that remains in the archive.",
    ),
    Mutant(
        "archive-is-left-with-its-first-batch",
        "connector/source/history_reader.py",
        "            if further is not None:\n                return _with_history(position, further)",
        "            if further is not None and history.bounds is None:\n"
        "                return _with_history(position, further)",
        "The rest of the archive is not read.",
    ),
)
