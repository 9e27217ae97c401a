"""A query whose bundled engine has ended because the folder of its socket was removed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import RStreamError, ServerUnreachableError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.wire.lease import LeaseTerms
from spark_streams.engine.launch.embedded import locate
from tools.driving import ALL, SMALL, forget_all, reader
from tools.machine_time import machine_seconds
from tools.servers.server import Server, serving


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which this process finds the engine. Its path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="rs-"))
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(folder))
    yield folder
    forget_all()
    shutil.rmtree(folder, ignore_errors=True)


def end_of(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.shutdown(nosave=True)


def ask_again(one: StreamReader, end: dict[str, Any], seconds: float = 10.0) -> None:
    """Ask for the next batch, as Spark does, until the query fails."""
    deadline = machine_seconds() + seconds
    while machine_seconds() < deadline:
        end = one.latestOffset(end, ALL)


@pytest.mark.parametrize("meanwhile", ["nothing", "another program starts a second engine"])
def test_a_query_fails_and_names_the_removed_socket(folder: Path, meanwhile: str) -> None:
    """It neither starts a second engine nor goes on in one that another program has started."""
    path = folder / "engine.sock"
    limits = replace(SMALL, idle_wait=0.02, lease=LeaseTerms(ttl=300))
    with serving("--unixsocket", str(path), "--socket-check", "0.2") as engine:
        with redis.Redis(unix_socket_path=str(path)) as client:
            client.xadd("s", {"n": 1})
        one = reader(Server("engine", "embedded:"), limits=limits)
        at = one.initialOffset()
        end = one.latestOffset(at, ALL)
        shutil.rmtree(folder)
        second = None if meanwhile == "nothing" else locate(meeting=folder)
        try:
            engine.process.wait(timeout=30)
            message = rf"at embedded:: its socket {path} is gone\. .* a logout .* Its streams are gone with it"
            with pytest.raises(ServerUnreachableError, match=message) as caught:
                ask_again(one, end)
            assert not caught.value.passes
            one.stop()
            assert path.exists() == (second is not None)
        finally:
            if second is not None:
                end_of(second)


def test_an_engine_whose_directory_is_removed_is_named(folder: Path) -> None:
    """One that has ended otherwise is started again from its file."""
    directory = folder / "data"
    server = Server("engine", f"embedded://{directory}")
    end_of_first = locate(directory)
    with redis.Redis.from_url(end_of_first) as client:
        client.xadd("s", {"n": 1})
    one = reader(server)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    end_of(end_of_first)
    assert one.latestOffset(end, ALL) == end
    end_of(locate(directory))
    shutil.rmtree(directory)
    with pytest.raises(RStreamError, match=rf"its directory {directory} is gone"):
        one.latestOffset(end, ALL)
