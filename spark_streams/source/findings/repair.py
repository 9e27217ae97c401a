"""What the remedies of findings come to: groups to create or set, marks to delete, where the query reads on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.findings.finding import Finding, Start
from spark_streams.source.findings.remedies import Act, remedy_of
from spark_streams.source.offset import Offset


@dataclass(frozen=True)
class Repair:
    """created, moved: groups to create, and to set. begin: the checkpoint, as the query goes on from it. unmarked:
    streams whose commit mark is to be deleted. forgotten: streams of which nothing is known any more. left: streams
    that the query reads no more. passed: up to where the query goes on without what nobody was given. shared: streams
    whose groups others have read from. covered: streams of which the tasks' notes on the last batch count no more."""

    begin: Offset
    created: dict[str, Start] = field(default_factory=dict)
    moved: dict[str, Start] = field(default_factory=dict)
    unmarked: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    passed: dict[str, StreamId] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    covered: frozenset[str] = frozenset()


def repair_of(findings: Iterable[Finding], begin: Offset, lenient: bool) -> Repair:
    """Return what is to be done about findings that raise no error."""
    asked = [(finding, remedy_of(finding, lenient).acts) for finding in findings]
    put = [finding for finding, acts in asked if Act.PUT_GROUP in acts and not _stands_there(finding)]
    for finding, acts in asked:
        if Act.BEGIN_AT in acts and finding.to.position != finding.above:
            begin = begin.with_position(finding.stream, finding.to.position)
    forgotten = tuple(finding.stream for finding, acts in asked if Act.FORGET in acts)
    if forgotten:
        begin = replace(begin, counts={stream: one for stream, one in begin.counts.items() if stream not in forgotten})
    left = tuple(finding.stream for finding, acts in asked if Act.LEAVE in acts)
    return Repair(
        begin.without(left) if left else begin,
        {finding.stream: finding.to for finding in put if finding.position is None},
        {finding.stream: finding.to for finding in put if finding.position is not None},
        tuple(dict.fromkeys(finding.stream for finding, acts in asked if Act.DROP_MARK in acts)),
        forgotten,
        left,
        {finding.stream: finding.to.position for finding, acts in asked if Act.SKIP_TO in acts},
        tuple(finding.stream for finding, acts in asked if Act.SHARE in acts),
        frozenset(finding.stream for finding, acts in asked if Act.COVER_NOTES in acts),
    )


def _stands_there(finding: Finding) -> bool:
    """Whether the group need not be set. If the number of entries up to there is known, it is told that."""
    return finding.to.position == finding.position and finding.to.read is None
