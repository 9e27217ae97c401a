"""TLS with an authority of one's own and clients' certificates, on a real server, beside a user and a password."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.options.access_options import server_of
from spark_streams.connector.wire.connect import connect
from tests.certificates import certificates
from tests.connector.sink.writing import batch_of, close, frame, options, write
from tools.driving import add, drain, forget_all, reader
from tools.servers.server import Server, free_port, running_redis, skip_without_redis

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(keys: Path) -> Iterator[tuple[Server, str]]:
    """A server by its plain port, and its URL for TLS without certificates."""
    skip_without_redis()
    port = free_port()
    words = ["--tls-port", str(port), "--tls-cert-file", str(keys / "server.pem"), "--tls-auth-clients", "yes",
             "--tls-key-file", str(keys / "server.key"), "--tls-ca-cert-file", str(keys / "ca.pem")]  # fmt: skip
    with running_redis(*words) as server:
        yield server, f"rediss://127.0.0.1:{port}/0"


@pytest.fixture(scope="module")
def elsewhere(keys: Path) -> Iterator[str]:
    """The URL of a server whose certificate the authority has signed for another host."""
    skip_without_redis()
    port = free_port()
    words = ["--tls-port", str(port), "--tls-cert-file", str(keys / "elsewhere.pem"), "--tls-auth-clients", "no",
             "--tls-key-file", str(keys / "elsewhere.key"), "--tls-ca-cert-file", str(keys / "ca.pem")]  # fmt: skip
    with running_redis(*words):
        yield f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={keys}/ca.pem"


@pytest.fixture
def trusted(secured: tuple[Server, str], keys: Path) -> Iterator[str]:
    yield f"{secured[1]}?ssl_ca_certs={keys}/ca.pem&ssl_certfile={keys}/client.pem&ssl_keyfile={keys}/client.key"
    forget_all()


def test_a_source_a_sink_and_a_command(secured: tuple[Server, str], trusted: str) -> None:
    with secured[0].client() as plain:
        plain.flushall()
        add(plain, 100)
    server = Server("redis", trusted)
    assert drain(reader(server)) == [list(range(100))]
    checked, batch = options(trusted), batch_of(0)
    close(checked, batch, write([frame(range(50))], checked, batch))
    ran = CliRunner().invoke(main, ["streams", "--url", trusted])
    assert "out" in ran.output
    with secured[0].client() as plain:
        assert plain.xlen("out") == 50


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("", "certificate verify failed.*; name the authority of its certificate in the url: .ssl_ca_certs=/path"),
        ("?ssl_ca_certs={keys}/ca.pem", "; it may want a client's certificate .ssl_certfile=/path"),
        ("?ssl_ca_certs={keys}/nowhere.pem", "No such file or directory; check that the files of ssl_ca_certs"),
    ],
)
def test_a_failed_certificate_check_is_an_error_with_its_cause(
    secured: tuple[Server, str], keys: Path, parameters: str, said: str
) -> None:
    address = server_of({"url": secured[1] + parameters.format(keys=keys)}, "source")
    with pytest.raises(ServerUnreachableError, match=said), connect(address):
        pass


def test_a_certificate_of_another_host_is_refused(elsewhere: str) -> None:
    """With every redis-py: 5 does not look by itself whose certificate it is."""
    with pytest.raises(ServerUnreachableError) as caught:
        connect(server_of({"url": elsewhere}, "source"))
    assert "certificate is not valid for '127.0.0.1'" in caught.value.message
    assert "write the host in the url as its certificate names it" in caught.value.message


@pytest.mark.parametrize("parameter", ["ssl_check_hostname=false", "ssl_cert_reqs=none"])
def test_the_url_may_give_up_the_check(elsewhere: str, parameter: str) -> None:
    with connect(server_of({"url": f"{elsewhere}&{parameter}"}, "source")) as server:
        assert server.execute("PING") == b"PONG"
