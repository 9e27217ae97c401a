"""A redrive and a purge at their limits: the last dead letter of a page, and limits that count what is parked, too."""

from __future__ import annotations

import pytest

from spark_streams.connector.deadletter.envelope import MARK, RedriveMark, dead_letter_fields
from spark_streams.connector.deadletter.letter_page import Criteria
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive, purge
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.wire.address import Address
from tests.connector.deadletter.making import DEAD, SMALL, fill, numbers, record_origin, redrive
from tools.servers.server import Server


@pytest.mark.parametrize("count", [1, 6, 7, 8, 9, 56, 57, 58])
def test_the_last_dead_letter_goes_wherever_a_page_ends(server: Server, count: int) -> None:
    """The first page has seven, the next one up to fifty."""
    fill(server, count)
    assert redrive(server, dry_run=True).moved == count
    report = redrive(server)
    assert (report.moved, report.total, report.looked_at) == (count, count, count)
    assert (numbers(server), numbers(server, DEAD)) == (list(range(count)), [])


def in_turns(server: Server, count: int) -> None:
    """Every second one was redriven as often as possible: 0, 2, 4 …"""
    with server.client() as client:
        client.xgroup_create("s", "g", id="0", mkstream=True)
        record_origin(client, DEAD, "s", "g")
        for n in range(count):
            mark = RedriveMark(1 if n % 2 else 2, "2026-01-01T00:00:00.000000Z", "dead/1-0")
            entry = [b"n", b"%d" % n, MARK, bytes(mark)]
            told = {"stream": "s", "id": f"{n + 1}-0", "group": "g"}
            client.execute_command("XADD", DEAD, "*", *dead_letter_fields(entry, told))


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 20, 21])
def test_a_limit_counts_what_is_moved_and_what_is_parked(server: Server, limit: int) -> None:
    in_turns(server, 20)
    for dry_run in (True, False):
        report = redrive(server, dry_run, limit=limit, max_redrives=2)
        done = list(range(min(limit, 20)))
        assert (report.moved, report.parked) == (len(done[1::2]), len(done[0::2]))
    assert (numbers(server), numbers(server, "dead:parked")) == (done[1::2], done[0::2])
    assert numbers(server, DEAD) == list(range(len(done), 20))


def test_a_rate_counts_what_is_moved_and_what_is_parked(server: Server) -> None:
    in_turns(server, 40)
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    options = RedriveOptions(DEAD, rate=20, max_redrives=2)
    run = DeadLetterRedrive(Address.parse(server.url), options, limits=SMALL, clock=lambda: clock[0], sleep=sleep)
    report = run.run()
    assert (report.moved, report.parked, clock[0]) == (20, 20, pytest.approx(40 / 20))


@pytest.mark.parametrize("limit", [0, 1, 6, 7, 8, 14, 15, 60, 61])
def test_a_purge_deletes_up_to_its_limit_over_all_pages(server: Server, limit: int) -> None:
    fill(server, 60)
    for dry_run in (True, False):
        done = purge(Address.parse(server.url), DEAD, Criteria(), limit or None, dry_run, limits=SMALL)
        assert (done.deleted, done.counts.letters) == (min(limit or 60, 60),) * 2
    assert numbers(server, DEAD) == list(range(min(limit or 60, 60), 60))
