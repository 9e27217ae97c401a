"""All that a source does on a server, as a user who may do that and nothing else."""

from __future__ import annotations

from tools.driving import add, drain, reader
from tools.servers.server import Server


def read_in_all_ways(limited: Server, server: Server) -> None:
    """Of stream `s`, group `g` and `h`, pattern `o:*`, dead letters in `dead`. server: the same, for who may all."""
    with server.client(decode_responses=True) as admin:
        add(admin, 50)
        admin.xadd("s", {"n": "bad"})
        admin.xgroup_create("s", "g", id="0")
        admin.xreadgroup("g", "bob", {"s": ">"}, count=10)
    given = {"mode": "DEADLETTER", "deadLetterStream": "dead", "maxDeliveries": "3", "claimIdle": "1ms"}
    assert sorted(n for batch in drain(reader(limited, **given)) for n in batch) == list(range(50))
    waits = {**given, "group": "w", "retryDelay": "1h"}
    assert sorted(n for batch in drain(reader(limited, **waits)) for n in batch) == list(range(50))
    assert drain(reader(limited, streamsPattern="o:*", failOnDataLoss="false")) == []
    without_list = reader(limited, group="h", noAck="true", mode="DROPMALFORMED")
    assert [n for batch in drain(without_list, 20) for n in batch] == list(range(50))
