"""TLS: handshakes that hold up nobody, clients' certificates, long replies, and what is not TLS at all."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.certificates import certificates
from tools.machine_time import machine_seconds
from tools.servers.server import Served, free_port, serving

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", params=["no", "yes"])
def secured(keys: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Served, int, str]]:
    """An engine that speaks TLS, without and with clients' certificates."""
    port = free_port()
    words = ["--tls-port", str(port), "--tls-cert-file", str(keys / "server.pem"),
             "--tls-key-file", str(keys / "server.key"), "--tls-auth-clients", request.param]  # fmt: skip
    if request.param == "yes":
        words += ["--tls-ca-cert-file", str(keys / "ca.pem")]
    with serving(*words) as served:
        yield served, port, request.param


def _options(keys: Path, certificate: str) -> dict[str, Any]:
    options: dict[str, Any] = {"ssl": True, "ssl_ca_certs": str(keys / "ca.pem")}
    if certificate == "yes":
        options.update(ssl_certfile=str(keys / "client.pem"), ssl_keyfile=str(keys / "client.key"))
    return options


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_over_tls(secured: tuple[Served, int, str], keys: Path, protocol: int) -> None:
    """Pipelines and replies of megabytes, sync and asyncio."""
    _, port, certificate = secured
    options = _options(keys, certificate)
    with redis.Redis(port=port, host="127.0.0.1", protocol=protocol, **options) as client:
        client.flushall()
        pipe = client.pipeline(transaction=False)
        for number in range(5000):
            pipe.xadd("s", {"n": number, "text": "x" * 500})
        assert len(pipe.execute()) == 5000
        assert len(client.xrange("s")) == 5000
        big = b"y" * 3_000_000
        client.set("k", big)
        assert client.get("k") == big

    async def converse() -> Any:
        async with redis.asyncio.Redis(port=port, host="127.0.0.1", protocol=protocol, **options) as client:
            waiting = asyncio.create_task(client.xread({"s": "$"}, block=5000))
            while not (await client.info("clients"))["blocked_clients"]:
                await asyncio.sleep(0.01)
            await client.xadd("s", {"a": 1}, id="9999999999999-1")
            return await waiting

    assert "9999999999999-1" in str(asyncio.run(converse()))


def test_who_shows_no_certificate_stays_outside(secured: tuple[Served, int, str], keys: Path) -> None:
    """Where one is asked for; and an authority that nobody knows is no use."""
    _, port, certificate = secured
    client = redis.Redis(port=port, host="127.0.0.1", **_options(keys, "no"))
    if certificate == "yes":
        with pytest.raises(redis.ConnectionError):
            client.ping()
    else:
        assert client.ping()
    client.close()


def test_handshakes_that_stand_still_hold_up_nobody(secured: tuple[Served, int, str], keys: Path) -> None:
    """Fifty that never go on, some that are not TLS; the next client is served at once."""
    _, port, certificate = secured
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    try:
        for number, one in enumerate(opened):
            if number % 3:
                one.sendall(
                    [b"\x16\x03\x01", b"PING\r\n", b"*1\r\n$4\r\nPING\r\n", b"\x16\x03\x01\xff\xff"][number % 4]
                )
        with redis.Redis(port=port, host="127.0.0.1", **_options(keys, certificate)) as client:
            begun = machine_seconds()
            assert client.ping()
            assert machine_seconds() - begun < 1
    finally:
        for one in opened:
            one.close()


def test_half_a_handshake_and_then_the_end(secured: tuple[Served, int, str]) -> None:
    """The engine forgets the connection."""
    served, port, _ = secured
    with socket.create_connection(("127.0.0.1", port)) as plain:
        context = ssl.create_default_context()
        context.check_hostname = False
        inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
        handshake = context.wrap_bio(inward, outward, server_hostname=None)
        with pytest.raises(ssl.SSLWantReadError):
            handshake.do_handshake()
        plain.sendall(outward.read()[:50])
    assert served.process.poll() is None


def test_a_key_that_cannot_be_read_is_one_clear_line(keys: Path) -> None:
    """At the start, with exit code 1."""
    with pytest.raises(AssertionError, match="cannot listen on TLS with"), serving(
        "--tls-port", str(free_port()), "--tls-cert-file", str(keys / "none.pem"),
        "--tls-key-file", str(keys / "server.key"), "--tls-auth-clients", "no",
    ):  # fmt: skip
        pass


def test_the_sink_writes_through_tls(secured: tuple[Served, int, str], keys: Path) -> None:
    """Requests of megabytes are written while replies are read, on one TLS connection."""
    import pyarrow as pa

    from spark_streams.connector.options.access_options import SinkOptions
    from spark_streams.connector.sink.batch_commit import begin_job
    from spark_streams.connector.sink.chunk_writer import SinkTask, append

    _, port, certificate = secured
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={keys / 'ca.pem'}"
    if certificate == "yes":
        url += f"&ssl_certfile={keys / 'client.pem'}&ssl_keyfile={keys / 'client.key'}"
    rows = [pa.RecordBatch.from_pydict({"n": list(range(at, at + 5000)), "t": ["x" * 500] * 5000}) for at in (0, 5000)]
    with redis.Redis(host="127.0.0.1", port=port, **_options(keys, certificate)) as client:
        options = SinkOptions.parse({"url": url, "stream": "tls"})
        for task in (None, SinkTask(begin_job(options.address))):
            client.delete("tls")
            append(rows, options, task)
            assert [int(fields[b"n"]) for _, fields in client.xrange("tls")] == list(range(10_000))
