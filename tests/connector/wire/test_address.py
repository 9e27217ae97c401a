"""An address that means another server on each machine, in a task: `embedded:` is the driver's engine, or an error, and
never one that the task's own machine starts."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """The address as the driver has read it. An engine that was started for it is stopped."""
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(tmp_path / "driver"))
    yield Address.parse("embedded:?idle=30")
    if (tmp_path / "driver" / "engine.sock").exists():
        with Connection(Address.parse(f"unix://{tmp_path}/driver/engine.sock")) as server:
            server.send(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")


def test_a_task_on_another_machine_starts_no_engine_there(
    drivers: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = socket.gethostname()
    there = pickle.loads(pickle.dumps(drivers))
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-7")
    with pytest.raises(ServerUnreachableError) as error:
        Connection(there)
    assert f"the bundled engine of machine {driver!r}, where the driver runs, and this task runs on 'worker-7'" in str(
        error.value
    )
    assert "set url (or RSTREAM_URL) to redis://host:port/db" in str(error.value)
    assert not error.value.passes  # nobody waits for it
    assert not (tmp_path / "driver").exists()


def test_a_task_with_another_environment_finds_the_drivers_engine(
    drivers: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that a service manager has started has no XDG_RUNTIME_DIR, and may have another TMPDIR."""
    there = pickle.loads(pickle.dumps(drivers))
    with Connection(drivers) as server:
        server.execute("XADD", "s", "1-1", "f", "v")
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(tmp_path / "worker"))
    with Connection(there) as server:
        assert server.execute("XLEN", "s") == 1
    assert not (tmp_path / "worker").exists()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis://localhost:1", "unix:///nowhere/x.sock"])
def test_an_address_of_each_machines_own_is_named_where_nobody_answers(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be right: a proxy on every machine. So it is waited for, as any server is."""
    there, driver = Address.parse(url), socket.gethostname()
    with pytest.raises(ServerUnreachableError) as here:
        Connection(there)
    assert "machine" not in str(here.value)
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-7")
    with pytest.raises(ServerUnreachableError) as error:
        Connection(there)
    assert f"(on machine 'worker-7'; the driver is on {driver!r}, and this address is each machine's own)" in str(
        error.value
    )
    assert error.value.passes


def test_an_address_that_is_the_same_everywhere_says_nothing_of_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Address.parse("redis://redis.internal:6379/0")
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-7")
    assert there.machine_hint() == ""
