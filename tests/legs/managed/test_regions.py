"""Active-Active: a query is sent to another region, which knows what the documentation says that it knows.

Entries and other keys are there. Of a group: that it exists, and XACK as far as all entries before are acknowledged.
Consumers, pending entries and XREADGROUP are not.
"""

from __future__ import annotations

from typing import Any

import pytest

from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import ALL, add, forget_all, read, reader
from tools.servers.managed.standin import Service, StandIn, running_standin

pytestmark = pytest.mark.usefixtures("redis_server")


def synchronize(from_region: StandIn, to_region: StandIn) -> None:
    with from_region.admin.client() as old, to_region.admin.client() as new:
        for key in old.keys("*"):
            if old.type(key) != b"stream":
                new.restore(key, max(old.pttl(key), 0), old.dump(key))
                continue
            entries: Any = old.xrange(key)
            for entry_id, fields in entries:
                new.xadd(key, fields, id=entry_id)
            for group in old.xinfo_groups(key):
                pending: Any = old.xpending_range(key, group["name"], "-", "+", 1)
                ids = [b"0", *(entry_id for entry_id, _ in entries)]
                at = ids.index(pending[0]["message_id"]) - 1 if pending else 0  # noAck: nothing is acknowledged
                new.xgroup_create(key, group["name"], id=ids[at])


@pytest.mark.in_turn
@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=["", "noAck"])
def test_a_query_that_goes_on_in_another_region_reads_each_entry_once(options: dict[str, str]) -> None:
    """One batch is acknowledged, one is read and not committed."""
    service = Service.named("redis-active-active")
    with running_standin(service) as here, running_standin(service) as there:
        with here.admin.client() as client:
            add(client, 60)
        query = reader(here, **options)
        start = query.initialOffset()
        first = query.latestOffset(start, ReadMaxRows(20))
        found = read(query, start, first)
        second = query.latestOffset(first, ReadMaxRows(20))
        query.commit(first)
        read(query, first, second)
        forget_all()
        synchronize(here, there)
        query, offset, end = reader(there, **options), first, second
        while end != offset:
            found += read(query, offset, end)
            query.commit(end)
            offset, end = end, query.latestOffset(end, ALL)
        forget_all()
        assert found == [*range(60)]
        with there.admin.client() as client:
            assert client.xpending("s", "g")["pending"] == 0
