"""Purge: what is meant is deleted, and no more, also where the connection breaks."""

from __future__ import annotations

from typing import Any

import pytest

from spark_streams.connector.deadletter.letter_page import Criteria
from spark_streams.connector.deadletter.redrive import purge
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.connector.deadletter.making import DEAD, SMALL, fill, numbers
from tools.servers.server import Server


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_limit_holds_where_the_connection_breaks_in_the_midst_of_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """A deletion whose reply was lost is done again, and finds nothing: it counts all the same."""
    fill(server, 100)
    honest = Connection.execute
    breaks = iter(range(3))

    def cut(self: Connection, *words: Any) -> Any:
        if words[0] == "XDEL" and next(breaks, None) is not None:
            if lost == "reply":
                honest(self, *words)
            raise self.lost(None)
        return honest(self, *words)

    monkeypatch.setattr(Connection, "execute", cut)
    done = purge(Address.parse(server.url), DEAD, Criteria(reasons=("odd",)), limit=30, limits=SMALL)
    assert (done.deleted, done.counts.letters) == (30, 30)
    odd = [n for n in range(100) if n % 3]
    assert sorted(set(range(100)) - set(numbers(server, DEAD))) == odd[:30]


def test_dead_letters_that_another_client_deletes_meanwhile_are_not_counted(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(server, 100)
    honest = Connection.execute

    def others(self: Connection, *words: Any) -> Any:
        if words[0] == "XDEL":
            honest(self, "XDEL", DEAD, ids[3], ids[50])
        return honest(self, *words)

    monkeypatch.setattr(Connection, "execute", others)
    done = purge(Address.parse(server.url), DEAD, Criteria(), limits=SMALL)
    assert (done.deleted, numbers(server, DEAD)) == (98, [])
