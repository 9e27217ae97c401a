"""Replies as values, and what error replies mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, Reply, ReplyError, parse_replies
from spark_streams.connector.wire.replies import (
    ID_TOO_LOW,
    IDS_EXHAUSTED,
    find_errors,
    is_busy_group,
    is_id_refusal,
    is_key_required,
    is_no_group,
    is_no_such_key,
    is_syntax_error,
    is_wrong_type,
    may_hold_errors,
)
from tools.servers.server import Server

Predicate = Callable[[Reply], bool]
ALL = (is_busy_group, is_id_refusal, is_key_required, is_no_group, is_no_such_key, is_syntax_error, is_wrong_type)
REFUSED = [
    (("XINFO", "STREAM", "none"), is_no_such_key),
    (("XINFO", "GROUPS", "none"), is_no_such_key),
    (("XINFO", "CONSUMERS", "none", "g"), is_no_such_key),
    (("XINFO", "CONSUMERS", "s", "none"), is_no_group),
    (("XREADGROUP", "GROUP", "none", "c", "STREAMS", "s", ">"), is_no_group),
    (("XGROUP", "CREATE", "s", "g", "0"), is_busy_group),
    (("XGROUP", "CREATE", "none", "g", "0"), is_key_required),
    (("XGROUP", "SETID", "none", "g", "0"), is_key_required),
    (("XLEN", "text"), is_wrong_type),
    (("XTRIM", "s", "MAXLEN", "=", "5", "NONSENSE"), is_syntax_error),
    (("XADD", "s", "1-1", "f", "v"), is_id_refusal),
    (("XADD", "s", "0-0", "f", "v"), is_id_refusal),
    (("XADD", "s", "no id", "f", "v"), is_id_refusal),
]


@pytest.mark.parametrize(("command", "expected"), REFUSED, ids=lambda value: getattr(value, "__name__", None))
def test_each_refusal_of_a_server_is_recognised_as_what_it_is_and_as_nothing_else(
    server: Server, command: Sequence[str], expected: Predicate
) -> None:
    with Connection(Address.parse(server.url)) as connection:
        connection.execute_all(
            [("XADD", "s", "5-0", "f", "v"), ("XGROUP", "CREATE", "s", "g", "0"), ("SET", "text", "no stream")]
        )
        reply = connection.pipeline([command])[0]
    assert isinstance(reply, ReplyError)
    assert [means for means in ALL if means(reply)] == [expected]


@pytest.mark.parametrize("reply", [None, 5, b"ERR no such key", [ReplyError("ERR no such key")], ReplyError("")])
def test_what_is_no_error_reply_means_none_of_them(reply: Reply) -> None:
    assert not any(means(reply) for means in ALL)


def test_a_sentence_counts_only_behind_a_plain_err() -> None:
    assert not is_no_such_key(ReplyError("NOPERM no such key"))
    assert is_id_refusal(ReplyError(ID_TOO_LOW))
    assert not is_id_refusal(ReplyError(IDS_EXHAUSTED))


def test_errors_are_found_among_replies_that_came_together() -> None:
    good = b"$3\r\n1-0\r\n:5\r\n+OK\r\n"
    assert not may_hold_errors(good)
    assert may_hold_errors(b"-OOM full\r\n")
    assert may_hold_errors(good + b"-ERR no\r\n")
    [(place, error)] = find_errors(parse_replies(good + b"-ERR no\r\n" + good))
    assert (place, str(error), error.code) == (3, "ERR no", "ERR")
    assert parse_replies(memoryview(good)) == [b"1-0", 5, b"OK"]
