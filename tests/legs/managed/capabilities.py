"""What is tried on each stand-in. Each capability runs on an empty server, and raises an error if it does not work.

It returns what it costs there, in words, or None if it works as on a server of one's own.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import ConsumerTakenError, UnsupportedError
from spark_streams.connector.sink.batch_commit import begin_job
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.lease import LeaseTerms, Processes
from tests.connector.deadletter.making import DEAD, fill, redrive
from tests.connector.sink.writing import close, numbers, options
from tests.jobs.work import ROOT, Work, sample
from tools.driving import ALL, another_reader, drain, forget_all, read, reader
from tools.servers.managed.standin import StandIn
from tools.waiting import until

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


def with_letters(tried: Callable[[StandIn, str], None]) -> Callable[[StandIn], str | None]:
    """Return a capability that writes dead letters, first to a stream of any name."""

    def run(standin: StandIn) -> str | None:
        try:
            tried(standin, DEAD)
        except UnsupportedError:
            with standin.admin.client() as client:
                client.flushall()
            forget_all()
            tried(standin, f"{{s}}:{DEAD}")
            return "only if both streams have one hash tag"
        return None

    return run


def dead_letters(standin: StandIn, dead: str) -> None:
    """Entries that were delivered too often."""
    _add(standin, 500)
    _take(standin, "bob", 500)
    time.sleep(0.01)
    letters = {"claimIdle": "1ms", "maxDeliveries": "1", "deadLetterStream": dead}
    assert drain(reader(standin, limits=LIMITS, **letters)) == []
    with standin.admin.client() as client:
        assert client.xlen(dead) == 500
    assert _pending(standin) == 0


def retries(standin: StandIn, dead: str) -> None:
    _add(standin, 20)
    with standin.admin.client() as client:
        client.xadd("s", {"n": "no number"})
    letters = {"mode": "DEADLETTER", "deadLetterStream": dead, "retryDelay": "1ms", "maxDeliveries": "2"}
    query = reader(standin, limits=LIMITS, **letters)
    offset, deadline = query.initialOffset(), time.monotonic() + 20
    with standin.admin.client() as client:
        while not client.xlen(dead):
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


def lost_lease(standin: StandIn) -> None:
    """Its key is gone, and a query of another machine takes the name: the first one stops, and no entry is twice."""
    _add(standin, 300)
    terms = replace(LIMITS, lease=LeaseTerms(ttl=300))
    first = reader(standin, limits=terms)
    offset = first.initialOffset()
    end = first.latestOffset(offset, ReadMaxRows(100))
    seen = read(first, offset, end)
    with standin.admin.client() as client:
        key = lease_key("s", "g", "spark")
        client.set(key, json.dumps({"session": "another", **Processes().this(), "space": "elsewhere"}), px=60_000)

        def is_refused() -> bool:
            try:
                first.latestOffset(end, ReadMaxRows(0))
            except ConsumerTakenError:
                return True
            return False

        until(is_refused, "the lost lease is not found")
        client.delete(key)
    _all_once([seen, *drain(reader(standin, limits=LIMITS), start=end)], 300)


def command(*lines: str) -> Callable[[StandIn], str | None]:
    """Return a capability: commands of rstream end well on the group of a stopped query with pending entries."""

    def run(standin: StandIn) -> str | None:
        ids = _add(standin, 50)
        query = reader(standin, limits=LIMITS)
        query.latestOffset(query.initialOffset(), ALL)
        forget_all()
        found = list[str]()
        for line in lines:
            words = line.replace("ID", ids[3].decode()).split()
            ran = CliRunner().invoke(main, [*words, "--url", standin.url])
            _named(ran.output, ran.exit_code == 0 or words[0] == "doctor")
            for refused in re.findall(r"(?:may not run|it refuses) ([A-Z]+(?:, [A-Z]+)*)", ran.output):
                found += refused.split(", ")
        return f"not {', '.join(dict.fromkeys(found))}" if found else None

    return run


def _named(output: str, is_well: bool) -> None:
    """Raise AssertionError with the condition that a program has named, else with the end of its output."""
    condition = re.search(r"\[(RSTREAM_\w+)\]", output)
    assert is_well, condition[1] if condition else output[-300:]


def jobs(standins: Mapping[str, StandIn]) -> dict[str, str]:
    """Run etl and archive on each stand-in, in one Spark. Return what went wrong: a condition, or in words."""
    rows, wrong = sample(), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="rstream-managed-") as folder, contextlib.ExitStack() as stack:
        works = {name: stack.enter_context(Work(Path(folder, name), standin)) for name, standin in standins.items()}
        plan = list[list[str]]()
        for name, work in works.items():
            with standins[name].admin.client() as client:
                client.flushall()
                for row in rows:
                    client.xadd("flights", dict(row))
            plan += [work.arguments(job, f"url={standins[name].url}") for job in ("etl", "archive")]
        first = next(iter(works.values())).start(*plan)
        first.process.wait()
        said = first.output_file.read_text()
        for number, (name, work) in enumerate(works.items()):
            ended = [first.ended(2 * number), first.ended(2 * number + 1)]
            if ended != ["0", "0"]:
                found = re.search(rf"\[(RSTREAM_\w+)\].*:{standins[name].proxy.port}\b", said)
                wrong[name] = found[1] if found else f"exit codes {ended}: {said[-2000:]}"
                continue
            with standins[name].admin.client() as client:
                written = work.parquet("flights").num_rows + client.xlen("flights:dead")
            if (written, work.parquet("archive").num_rows) != (len(rows), len(rows)):
                wrong[name] = f"{written} rows of {len(rows)}"
    return wrong


def verify(standin: StandIn) -> str | None:
    """The guarantees hold while its driver is killed. Return what went wrong."""
    words = [sys.executable, "-m", "spark_streams.cli", "verify", "--url", standin.url, "--minutes", "0.05"]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(r"\[(RSTREAM_\w+)\]", ran.stdout + ran.stderr)
    return None if ran.returncode == 0 else found[-1] if found else ran.stdout[-300:]  # the last one is the cause


CAPABILITIES: Mapping[str, Callable[[StandIn], str | None]] = {
    "source": source,
    "acknowledge": acknowledged,
    "shared": shared,
    "noAck": no_ack,
    "claims": claims,
    "retries": with_letters(retries),
    "dead letters": with_letters(dead_letters),
    "sink once": sink_once,
    "sink": sink_at_least_once,
    "redrive": moved_back,
    "lease": lease,
    "lost lease": lost_lease,
    "lag": command("lag"),
    "where": command("where s ID"),
    "groups": command(
        "groups list s",
        "groups ack s --group g --consumer spark --id ID --yes",
        "groups claim s --group g --from spark --to ann --yes",
        "groups create s --group h --yes",
        "groups delete s --group h --yes",
        "groups prune s --idle 1d --yes",
    ),
    "seek": command("groups seek s --group g --to 0 --yes"),
    "copy": command("copy s t --yes"),
    "exporter": command("exporter --once"),
    "doctor": command("doctor --json"),
}
