"""What the remedies of findings require: groups to create or set, marks to delete, where the query continues. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.findings.finding import Finding, Start
from spark_streams.source.findings.remedies import Act, remedy_of
from spark_streams.source.offset import Offset


@dataclass(frozen=True)
class Repair:
    """Changes that the reconciler carries out.

    begin: the checkpoint from which the query continues; created, moved: groups to create, and to set; unmarked:
    streams whose commit mark is to be deleted; forgotten: streams whose counts are no longer known; abandoned: streams
    that the query no longer reads; passed: positions up to which it skips entries that no consumer was given; shared:
    streams whose groups other consumers have read from; covered: streams for which the tasks' notes on the last batch
    no longer count.
    """

    begin: Offset
    created: dict[str, Start] = field(default_factory=dict)
    moved: dict[str, Start] = field(default_factory=dict)
    unmarked: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    passed: dict[str, StreamId] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    covered: frozenset[str] = frozenset()


def repair_of(findings: Iterable[Finding], begin: Offset, lenient: bool) -> Repair:
    """Return the repair for findings that raise no error."""
    finding_acts = [(finding, remedy_of(finding, lenient).acts) for finding in findings]
    put = [finding for finding, acts in finding_acts if Act.PUT_GROUP in acts and not _is_in_place(finding)]
    for finding, acts in finding_acts:
        if Act.CONTINUE_ABOVE in acts and finding.to.position != finding.above:
            begin = begin.with_position(finding.stream, finding.to.position)
    forgotten = tuple(finding.stream for finding, acts in finding_acts if Act.FORGET in acts)
    if forgotten:
        begin = replace(
            begin, counts={stream: count for stream, count in begin.counts.items() if stream not in forgotten}
        )
    abandoned = tuple(finding.stream for finding, acts in finding_acts if Act.LEAVE in acts)
    return Repair(
        begin.without(abandoned) if abandoned else begin,
        {finding.stream: finding.to for finding in put if finding.position is None},
        {finding.stream: finding.to for finding in put if finding.position is not None},
        tuple(dict.fromkeys(finding.stream for finding, acts in finding_acts if Act.DROP_MARK in acts)),
        forgotten,
        abandoned,
        {finding.stream: finding.to.position for finding, acts in finding_acts if Act.SKIP_TO in acts},
        tuple(finding.stream for finding, acts in finding_acts if Act.SHARE in acts),
        frozenset(finding.stream for finding, acts in finding_acts if Act.IGNORE_NOTED_LOSSES in acts),
    )


def _is_in_place(finding: Finding) -> bool:
    """Whether the group need not be set. If the number of entries up to there is known, the group is set with it."""
    return finding.to.position == finding.position and finding.to.read is None
