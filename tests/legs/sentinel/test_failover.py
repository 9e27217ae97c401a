"""The master is killed, replaced, frozen, while a source reads and an exactly-once sink writes: nothing is lost,
nothing is there twice, nothing stays pending, and nothing is started again. (The replicas keep up here.)"""

from __future__ import annotations

import time

import pytest

from tests.piping import Piping
from tools.servers.sentinels import DOWN_AFTER, Sentinels
from tools.waiting import until

pytestmark = pytest.mark.in_turn


def test_a_master_that_is_killed(sentinels: Sentinels) -> None:
    before, piping = sentinels.master(), Piping(sentinels.server, sentinels.direct)
    piping.at_least(300)
    sentinels.kill(before)
    until(lambda: sentinels.master() != before, "no failover")
    piping.at_least(300)
    piping.end()
    piping.nothing_is_lost_or_doubled()


def test_a_master_that_is_replaced_while_it_lives(sentinels: Sentinels) -> None:
    """It takes writes for ten seconds more (R30): they are left to nobody."""
    before, piping = sentinels.master(), Piping(sentinels.server, sentinels.direct)
    piping.at_least(300)
    sentinels.fail_over()
    until(lambda: sentinels.master() != before, "no failover")
    piping.at_least(300)
    piping.end()
    piping.nothing_is_lost_or_doubled()


@pytest.mark.long
def test_a_master_that_stands_still_and_wakes_up_when_another_has_taken_over(sentinels: Sentinels) -> None:
    before, piping = sentinels.master(), Piping(sentinels.server, sentinels.direct)
    piping.at_least(300)
    sentinels.freeze(before)
    try:
        until(lambda: sentinels.master() != before, "no failover")
        piping.at_least(300)
    finally:
        sentinels.thaw(before)
    piping.at_least(300)
    piping.end()
    sentinels.healthy()
    piping.nothing_is_lost_or_doubled()


def test_a_master_that_stands_still_for_less_than_makes_it_count_as_down(sentinels: Sentinels) -> None:
    before, piping = sentinels.master(), Piping(sentinels.server, sentinels.direct)
    piping.at_least(300)
    sentinels.freeze(before)
    time.sleep(DOWN_AFTER / 2)
    sentinels.thaw(before)
    piping.at_least(300)
    piping.end()
    piping.nothing_is_lost_or_doubled()
