"""Reporting lost entries: an error that names them, or a count, by failOnDataLoss.

Each loss is a finding: of the diagnosis, of the account, or of a batch that is read again. The table of remedies
decides what the query does. The counts are logged, shown in the query's progress, and written into the next offset
(`losses`). If there is nothing to read, a batch without entries carries them (microbatch.trigger), so that no run
counts them again.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from spark_streams.source.findings.finding import Finding
from spark_streams.source.findings.messages import Place, problem_of
from spark_streams.source.findings.remedies import Act, Remedy, error_of, remedy_of

_COUNTED = "%s. Lost entries of stream %r that are counted: %d"
_AT_LEAST = "%s. Lost entries of stream %r that are counted: at least %d (the server cannot tell how many)"
_log = logging.getLogger("spark_streams.source")


@dataclass
class DataLoss:
    """Losses of one run. allowed: failOnDataLoss=false; counts: lost entries, per stream; unlogged: those of them that
    no offset has yet; noted_token: of the last batch whose tasks' notes are counted."""

    allowed: bool
    place: Place
    counts: Counter[str] = field(default_factory=Counter)
    unlogged: Counter[str] = field(default_factory=Counter)
    noted_token: str = ""

    def report(self, *findings: Finding, accepted: bool = False) -> None:
        """Raise the error of the first finding that has one. Otherwise count and log the losses. accepted: a run with
        failOnDataLoss=false has found them."""
        remedies = [(finding, remedy_of(finding, self.allowed or accepted)) for finding in findings]
        for finding, remedy in remedies:
            if remedy.error is not None:
                raise error_of(finding, remedy, self.place)
        for finding, remedy in remedies:
            self._note(finding, remedy)

    def _note(self, finding: Finding, remedy: Remedy) -> None:
        line = f"{problem_of(finding, self.place)}. The query {remedy.does}"
        if Act.COUNT in remedy.acts and finding.lost != 0:
            entries = finding.lost or 1
            self.counts[finding.stream] += entries
            self.unlogged[finding.stream] += entries
            _log.warning(_AT_LEAST if finding.lost is None else _COUNTED, line, finding.stream, entries)
        else:
            new_position = f" ({finding.to.position})" if Act.PUT_GROUP in remedy.acts else ""
            _log.log(logging.INFO if remedy.is_quiet else logging.WARNING, "%s%s", line, new_position)

    def take_unlogged(self) -> Counter[str]:
        """Return the losses that no offset has yet, and forget them: the next offset has them."""
        counts, self.unlogged = self.unlogged, Counter()
        return counts
