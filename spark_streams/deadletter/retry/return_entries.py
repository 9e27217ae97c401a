"""Entries that have waited long enough come back: from the stream that they wait in to the one that is read again.

    → WATCH waiting returned   XINFO STREAM returned   XRANGE waiting - due
    → MULTI   XGROUP CREATE returned   XADD returned …   XDEL waiting …   EXEC     nil where one has changed since

Both stand in the slot of the stream that the entries come from, so each entry is in one of them, whoever dies, and
whoever else of the group brings back at the same time. They are told apart by nothing but where they stand: the fields
stay as they are. The ids in `waiting` are the server's time, so what is due stands first.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.deadletter.ids_left import watch_with_room
from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.deadletter.page_reader import PageSize
from spark_streams.errors import ServerReplyError
from spark_streams.model.ids import StreamId
from spark_streams.wire.connection.connection import Argument, Connection, Reply, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.multi_exec import transact_each
from spark_streams.wire.replies.replies import errors_among
from spark_streams.wire.replies.reply_errors import is_busy_group

_TRIES = 100  # of a page, while others append to these streams
_FIRST_PAGE = 20  # entries; how large they are shows how many more


def bring_back(
    server: Server,
    waiting: str,
    returned: str,
    group: str,
    due: StreamId,
    most: int | None = None,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> int:
    """Have entries up to `due` come back, the oldest first, and the group on the stream that they come back to; how
    many there were: about as many as are wanted at `most`, or all.

    May be run again after a lost connection. Raises WrongKeyTypeError, IdsExhaustedError, ServerReplyError.
    """
    there, size, moved, tries = server.of(waiting), PageSize(limits, _FIRST_PAGE), 0, 0
    while most is None or moved < most:
        count = size.next()
        ask = ("XRANGE", waiting, "-", bytes(due), "COUNT", count)
        [page] = watch_with_room(there, [waiting, returned], [returned], count, ask)
        if not page:
            there.execute("UNWATCH")
            break
        if _moved(there, waiting, returned, group, page):
            moved, tries = moved + len(page), 0
            size.learn(len(page), sum(sum(map(len, fields)) for _, fields in page), len(page))
            continue
        tries += 1
        if tries == _TRIES:
            raise ServerReplyError(f"stream {waiting!r} at {server.address} changes too often to be emptied")
    return moved


def _moved(
    there: Connection, waiting: str, returned: str, group: str, page: Sequence[tuple[bytes, list[bytes]]]
) -> bool:
    """Whether they are where they belong now; not, where somebody was faster. Raises ServerReplyError where the server
    refuses them: then they wait again."""
    create: tuple[Argument, ...] = ("XGROUP", "CREATE", returned, group, "0-0", "MKSTREAM", "ENTRIESREAD", "0")
    added: list[tuple[Argument, ...]] = [("XADD", returned, "*", *fields) for _, fields in page]
    remove: tuple[Argument, ...] = ("XDEL", waiting, *[entry for entry, _ in page])
    replies = transact_each(there, [create, *added, remove])
    if replies is None:
        return False
    if isinstance(replies[0], ReplyError) and not is_busy_group(replies[0]):
        # The stream was made all the same, or is of no use: the next look says why.
        raise there.error_of(replies[0], create)
    refused = errors_among(replies[1:-1])
    if refused:
        _wait_again(there, waiting, [page[place][1] for place, _ in refused], replies[-1], refused[0][1])
    return True


def _wait_again(
    there: Connection, waiting: str, refused: Sequence[Sequence[bytes]], deleted: Reply, why: ReplyError
) -> None:
    """Entries that nothing could foresee to be refused (a user's rights that were taken away in that moment)."""
    if not isinstance(deleted, ReplyError):
        there.execute_all([("XADD", waiting, "*", *fields) for fields in refused])
    raise ServerReplyError(
        f"{len(refused)} entries of stream {waiting!r} could not come back, and wait there as before: "
        f"{there.error_of(why, ('XADD', waiting)).message}"
    )
