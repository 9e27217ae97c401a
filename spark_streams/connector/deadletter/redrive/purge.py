"""Delete dead letters, page by page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_streams.connector.deadletter.criteria import Criteria
from spark_streams.connector.deadletter.kind_counts import KindCounts
from spark_streams.connector.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.connector.deadletter.page_reader import dead_letter_pages, extent
from spark_streams.connector.deadletter.redrive.redrive_lease import RedriveLease
from spark_streams.connector.deadletter.retry.waiting_entries import refuse_returned_entries
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.session import Session


@dataclass
class Purged:
    """total: entries of the stream at the start; looked_at: entries examined so far; last: the last dead letter that
    was, or would be, deleted; deleted: their number; counts: of these, by (stream, stage, reason, error)."""

    total: int = 0
    looked_at: int = 0
    last: str = ""
    deleted: int = 0
    counts: KindCounts = field(default_factory=KindCounts)


def purge(
    address: Address,
    stream: str,
    criteria: Criteria,
    limit: int | None = None,
    dry_run: bool = False,
    tell: Callable[[Purged], None] = lambda purged: None,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> Purged:
    """Delete matching dead letters that the stream holds now; other entries stay.

    Raises RedriveTakenError if another process moves or purges them, StreamStateError if a query reads them,
    ServerError.
    """
    refuse_returned_entries(stream)
    purged = Purged()
    lease = RedriveLease(address, "redrive")
    with Session(address) as session:
        try:
            if not dry_run:
                session.run(lambda server: lease.hold(server, [stream]))
            within = session.run(lambda server: extent(server, stream, criteria))
            purged.total = within.length
            for page, selected in dead_letter_pages(session, stream, within, limits):
                if not dry_run:
                    lease.hold(session.get(), [stream])
                rows = selected if limit is None else selected[: limit - purged.deleted]
                purged.looked_at += page.count
                purged.counts.add(page.ids, page.kind(), rows)
                purged.last = page.ids[rows[-1].item()].as_py().decode() if len(rows) else purged.last
                if dry_run or not len(rows):
                    purged.deleted += len(rows)
                else:
                    purged.deleted += _delete(session, stream, page.ids.take(rows).to_pylist())
                tell(purged)
                if purged.deleted == limit:
                    break
        finally:
            lease.release()
    return purged


def _delete(session: Session, stream: str, ids: Sequence[bytes]) -> int:
    """Delete these dead letters, and return how many were deleted: after a lost reply, all of them."""
    tries = 0

    def delete(server: Server) -> int:
        nonlocal tries
        tries += 1
        deleted: int = server.execute("XDEL", stream, *ids)
        return deleted

    deleted = session.run(delete)
    return deleted if tries == 1 else len(ids)
