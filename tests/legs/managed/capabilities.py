"""What is tried on each stand-in. Each capability runs on an empty server, and raises an error if it does not work."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import ConsumerTakenError
from spark_streams.connector.sink.batch_commit import begin_job
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from spark_streams.connector.source.limits import LIMITS
from tests.connector.deadletter.making import DEAD, fill, redrive
from tests.connector.sink.writing import close, numbers, options
from tools.driving import ALL, another_reader, drain, forget_all, reader
from tools.servers.managed.standin import StandIn

ENTRIES = 6_000  # more than a request may name


def _add(standin: StandIn, count: int = ENTRIES, **fields: str) -> list[bytes]:
    with standin.admin.client() as client:
        pipe = client.pipeline(transaction=False)
        for n in range(count):
            pipe.xadd("s", {"n": n, **fields})
        return list(pipe.execute())


def _take(standin: StandIn, consumer: str, count: int) -> None:
    with standin.admin.client() as client:
        client.xgroup_create("s", "g", id="0", mkstream=True)
        client.xreadgroup("g", consumer, {"s": ">"}, count=count)


def _pending(standin: StandIn) -> int:
    with standin.admin.client() as client:
        return int(client.xpending("s", "g")["pending"])


def _all_once(batches: list[list[int]], count: int = ENTRIES) -> None:
    found = sorted(n for batch in batches for n in batch)
    assert found == [*range(count)], f"{len(found)} rows"


def source(standin: StandIn) -> None:
    _add(standin)
    query = reader(standin, limits=LIMITS)
    end = query.initialOffset()
    _all_once(drain(query, start=end))
    forget_all()
    again = reader(standin, limits=LIMITS)
    assert drain(again) == [] or _pending(standin) == ENTRIES
    forget_all()


def acknowledged(standin: StandIn) -> None:
    """A pending list that one request cannot name."""
    _add(standin)
    query = reader(standin, limits=LIMITS)
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    assert query.latestOffset(end, ALL) == end
    assert _pending(standin) == 0


def shared(standin: StandIn) -> None:
    _add(standin)
    _take(standin, "bob", 1_000)
    assert sum(map(len, drain(reader(standin, limits=LIMITS), 2_500))) == ENTRIES - 1_000


def no_ack(standin: StandIn) -> None:
    _add(standin)
    _all_once(drain(reader(standin, limits=LIMITS, noAck="true"), 2_500))


def claims(standin: StandIn) -> None:
    _add(standin)
    _take(standin, "bob", 5_000)
    time.sleep(0.01)
    _all_once(drain(reader(standin, limits=LIMITS, claimIdle="1ms")))


def dead_letters(standin: StandIn) -> None:
    """Entries that were delivered too often."""
    _add(standin, 500)
    _take(standin, "bob", 500)
    time.sleep(0.01)
    letters = {"claimIdle": "1ms", "maxDeliveries": "1", "deadLetterStream": DEAD}
    assert drain(reader(standin, limits=LIMITS, **letters)) == []
    with standin.admin.client() as client:
        assert client.xlen(DEAD) == 500
    assert _pending(standin) == 0


def retries(standin: StandIn) -> None:
    _add(standin, 20)
    with standin.admin.client() as client:
        client.xadd("s", {"n": "no number"})
    letters = {"mode": "DEADLETTER", "deadLetterStream": DEAD, "retryDelay": "1ms", "maxDeliveries": "2"}
    query = reader(standin, limits=LIMITS, **letters)
    offset, deadline = query.initialOffset(), time.monotonic() + 20
    with standin.admin.client() as client:
        while not client.xlen(DEAD):
            assert time.monotonic() < deadline, "no dead letter"
            end = query.latestOffset(offset, ALL)
            for partition in query.partitions(offset, end) if end != offset else ():
                list(query.read(partition))
            query.commit(end)
            offset = end


def sink_once(standin: StandIn) -> None:
    checked = options(standin.url)
    batch = begin_job(checked.address)
    rows = pa.RecordBatch.from_pydict({"n": list(range(ENTRIES))})
    close(checked, batch, append([rows], checked, SinkTask(batch)))
    assert sum(numbers(standin.admin).values()) == ENTRIES


def sink_at_least_once(standin: StandIn) -> None:
    rows = pa.RecordBatch.from_pydict({"n": list(range(ENTRIES))})
    append([rows], options(standin.url), None)
    assert sum(numbers(standin.admin).values()) == ENTRIES


def moved_back(standin: StandIn) -> None:
    fill(standin.admin, ENTRIES)
    assert redrive(standin).moved == ENTRIES


def lease(standin: StandIn) -> None:
    """A second query of the same name is refused."""
    _add(standin, 10)
    query = reader(standin, limits=LIMITS)
    query.latestOffset(query.initialOffset(), ALL)
    other = another_reader(standin, limits=LIMITS)
    with pytest.raises(ConsumerTakenError):
        other.latestOffset(other.initialOffset(), ALL)


def command(*words: str, changes: bool = False) -> Callable[[StandIn], None]:
    """Return a capability: a command of rstream ends well on the group of a stopped query with pending entries."""

    def run(standin: StandIn) -> None:
        ids = _add(standin, 50)
        query = reader(standin, limits=LIMITS)
        query.latestOffset(query.initialOffset(), ALL)
        forget_all()
        given = [word.replace("ID", ids[3].decode()) for word in words]
        ran = CliRunner().invoke(main, [*given, "--url", standin.url, *(["--yes"] if changes else [])])
        found = re.search(r"\[(RSTREAM_\w+)\]", ran.output)
        assert ran.exit_code == 0 or words == ("doctor",), found[1] if found else ran.output[-300:]

    return run


CAPABILITIES: Mapping[str, Callable[[StandIn], None]] = {
    "source": source,
    "acknowledge": acknowledged,
    "shared": shared,
    "noAck": no_ack,
    "claims": claims,
    "retries": retries,
    "dead letters": dead_letters,
    "sink once": sink_once,
    "sink": sink_at_least_once,
    "redrive": moved_back,
    "lease": lease,
    "lag": command("lag"),
    "where": command("where", "s", "ID"),
    "groups": command("groups", "ack", "s", "--group", "g", "--consumer", "spark", changes=True),
    "seek": command("groups", "seek", "s", "--group", "g", "--to", "0", changes=True),
    "copy": command("copy", "s", "t", changes=True),
    "doctor": command("doctor"),
}
