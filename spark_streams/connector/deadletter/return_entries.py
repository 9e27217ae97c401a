"""Move entries whose retry delay is over from their retry stream to the stream of returned entries.

    → WATCH waiting returned   XINFO STREAM returned   XRANGE waiting - due
    → MULTI   XGROUP CREATE returned   XADD returned …   XDEL waiting …   EXEC     nil if one of them has changed

Both streams are in the slot of the stream that the entries come from. So each entry is in exactly one of them, if a
process dies or if several queries of the group move entries at the same time. The fields do not change. IDs in
`waiting` are the server's time, so entries that are due come first.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.base.ids import StreamId
from spark_streams.connector.deadletter.dead_letter_limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.connector.deadletter.ids_left import watch_and_check_ids
from spark_streams.connector.deadletter.page_reader import PageSize
from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.wire.connection import Argument, Connection, Reply, ReplyError, Server
from spark_streams.connector.wire.replies import find_errors, is_busy_group, transact_each

_TRIES = 100  # of a page, while other clients append to these streams
_FIRST_PAGE = 20  # entries; their size decides about the next page


def return_due_entries(
    server: Server,
    waiting: str,
    returned: str,
    group: str,
    due: StreamId,
    limit: int | None = None,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> int:
    """Return entries up to `due` to the group, the oldest first, and create the group on the stream of returned
    entries. Return their number: about `limit` at most, or all.

    May be run again after a lost connection. Raises WrongKeyTypeError, IdsExhaustedError, ServerReplyError.
    """
    node, size, moved, tries = server.connection_for(waiting), PageSize(limits, _FIRST_PAGE), 0, 0
    while limit is None or moved < limit:
        count = size.next()
        ask = ("XRANGE", waiting, "-", bytes(due), "COUNT", count)
        [page] = watch_and_check_ids(node, [waiting, returned], [returned], count, ask)
        if not page:
            node.execute("UNWATCH")
            break
        if _move(node, waiting, returned, group, page):
            moved, tries = moved + len(page), 0
            size.learn(len(page), sum(sum(map(len, fields)) for _, fields in page), len(page))
            continue
        tries += 1
        if tries == _TRIES:
            raise ServerReplyError(
                f"stream {waiting!r} at {server.address} changes too often: its entries could not be returned"
            )
    return moved


def _move(node: Connection, waiting: str, returned: str, group: str, page: Sequence[tuple[bytes, list[bytes]]]) -> bool:
    """Move a page. Return False if another client was faster. Raises ServerReplyError if the server refuses entries:
    then they are put back, and wait again."""
    create: tuple[Argument, ...] = ("XGROUP", "CREATE", returned, group, "0-0", "MKSTREAM", "ENTRIESREAD", "0")
    added: list[tuple[Argument, ...]] = [("XADD", returned, "*", *fields) for _, fields in page]
    remove: tuple[Argument, ...] = ("XDEL", waiting, *[entry for entry, _ in page])
    replies = transact_each(node, [create, *added, remove])
    if replies is None:
        return False
    node.answer(create, replies[0], is_busy_group)  # the next attempt shows why, or the stream was created all the same
    refused = find_errors(replies[1:-1])
    if refused:
        _put_back(node, waiting, [page[place][1] for place, _ in refused], replies[-1], refused[0][1])
    node.answer(remove, replies[-1])
    return True


def _put_back(
    node: Connection, waiting: str, refused: Sequence[Sequence[bytes]], deleted: Reply, why: ReplyError
) -> None:
    """Put back entries whose refusal could not be foreseen (for example, rights that were revoked in that moment)."""
    if not isinstance(deleted, ReplyError):
        node.execute_all([("XADD", waiting, "*", *fields) for fields in refused])
    raise ServerReplyError(
        f"{len(refused)} entries of stream {waiting!r} could not be returned, and wait there as before: "
        f"{node.error_of(why, ('XADD', waiting)).message}"
    )
