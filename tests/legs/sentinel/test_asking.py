"""Which server the sentinels lead to: some are away, some know less than others, some name a replica."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import (
    LoginError,
    NotAllowedError,
    RStreamError,
    ServerReplyError,
    ServerUnreachableError,
)
from spark_streams.connector.options.access_options import server_of
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.session import Session, is_transient
from tests.legs.identity.documented_rights import rights
from tests.legs.sentinel.stub import stub
from tools.driving import add, drain, forget_all, reader
from tools.machine_time import machine_seconds
from tools.servers.sentinels import NAME, Sentinels
from tools.servers.server import Server, free_port
from tools.waiting import until


def url_of(*ports: int, name: str = NAME, login: str = "") -> str:
    return f"redis+sentinel://{login}{','.join(f'127.0.0.1:{port}' for port in ports)}/{name}"


def port_of(server: Server) -> int:
    return Address.parse(server.url).nodes[0][1]


def refused(url: str) -> RStreamError:
    with pytest.raises(RStreamError) as caught, connect(Address.parse(url)):
        pass
    return caught.value


def test_it_leads_to_the_master_and_the_commands_take_it(sentinels: Sentinels) -> None:
    with connect(Address.parse(sentinels.url)) as server:
        server.execute("XADD", "orders", "*", "n", 1)
        assert server.execute("ROLE")[0] == b"master"
    ran = CliRunner().invoke(main, ["streams", "--url", sentinels.url])
    assert ran.exit_code == 0
    assert "orders" in ran.output


def test_sentinels_that_are_allowed_name_a_master_that_is_not_listed(
    sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RSTREAM_ALLOW_HOSTS lists whom options may name; who operates listed sentinels decides what these name."""
    monkeypatch.setenv("RSTREAM_ALLOW_HOSTS", ",".join(f"127.0.0.1:{port}" for port in sentinels.sentinels))
    with connect(server_of({"url": sentinels.url}, "source")) as server:
        assert server.execute("ROLE")[0] == b"master"
    with pytest.raises(NotAllowedError, match=f"host 127.0.0.1:{sentinels.master()} is refused: RSTREAM_ALLOW_HOSTS"):
        server_of({"url": f"redis://127.0.0.1:{sentinels.master()}"}, "source")


def test_a_sentinel_that_is_away_is_passed_over_and_not_waited_for_again(sentinels: Sentinels) -> None:
    address = Address.parse(url_of(free_port(), *sentinels.sentinels))
    frozen = sentinels.sentinels[0]
    sentinels.freeze(frozen)
    try:
        with connect(address) as server:
            assert server.execute("PING") == b"PONG"
        begun = machine_seconds()
        for _ in range(5):
            connect(address).close()
        assert machine_seconds() - begun < 1, "the one that stands still was asked again each time"
    finally:
        sentinels.thaw(frozen)


def test_where_nobody_answers_the_error_names_the_sentinels() -> None:
    ports = free_port(), free_port()
    error = refused(url_of(*ports, login="me:secret@"))
    assert isinstance(error, ServerUnreachableError)
    assert is_transient(error)
    assert str(error).startswith(
        f"[RSTREAM_SERVER_UNREACHABLE] no sentinel answers at {url_of(*ports, login='***@')} (127.0.0.1:{ports[0]}: "
    )
    assert f"; 127.0.0.1:{ports[1]}: " in str(error)
    assert "start them, or correct the url" in str(error)


def test_a_master_that_they_do_not_know(sentinels: Sentinels) -> None:
    error = refused(url_of(*sentinels.sentinels, name="mian"))
    assert f"knows a master 'mian'; they know '{NAME}': write" in str(error)
    assert not is_transient(error)


def test_a_sentinel_with_a_login_of_its_own(sentinels: Sentinels) -> None:
    port = sentinels.sentinels[2]
    with sentinels.client(port) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">s3cret", "allcommands", "allchannels")
        client.execute_command("ACL", "SETUSER", "default", "resetpass", ">other")
    try:
        error = refused(url_of(port, login="app:s3cret@"))  # that is the server's
        assert isinstance(error, LoginError)
        assert "sentinel_username=…&sentinel_password=…" in str(error)
        wrong = refused(url_of(port) + "?sentinel_username=app&sentinel_password=s3crex")
        assert "invalid username-password pair" in str(wrong)
        assert "s3cre" not in f"{error} {wrong}"
        with connect(Address.parse(url_of(port) + "?sentinel_username=app&sentinel_password=s3cret")) as server:
            assert server.execute("PING") == b"PONG"
    finally:
        with sentinels.client(port, "app", "s3cret") as client:
            client.execute_command("ACL", "SETUSER", "default", "nopass")


def test_rights_that_the_docs_name_are_enough(sentinels: Sentinels) -> None:
    """Of the servers' user, and of the sentinels'."""
    docs = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "access.md").read_text()
    asking = re.search(r"for the sentinels' user `([^`]+)`", docs)
    assert asking is not None
    sentinel = sentinels.sentinels[1]
    url = url_of(sentinel, login="limited:pw@") + "?sentinel_username=app&sentinel_password=pw"
    with sentinels.direct() as admin, sentinels.client(sentinel) as other:
        wanted = [word for word in rights("reader") if word not in ("reset", "on", "+role")]
        admin.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", *wanted)
        other.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", *asking[1].split())
        error = refused(url)
        assert "no right to run ROLE" in str(error)
        assert "ACL SETUSER USER +role" in str(error)
        admin.execute_command("ACL", "SETUSER", "limited", "+role")
        add(admin, 10)
        assert drain(reader(Server("redis", url))) == [list(range(10))]
        until(lambda: listens(other, "app"), "nobody could listen")
        forget_all()


def listens(sentinel: redis.Redis, user: str) -> bool:
    return any(one["user"] == user and one["sub"] == "3" for one in sentinel.client_list())


def test_a_sentinel_that_refuses_subscriptions_is_reported_once(
    sentinels: Sentinels, caplog: pytest.LogCaptureFixture
) -> None:
    """What it costs is seen only when a master is replaced."""
    sentinel = sentinels.sentinels[1]
    with sentinels.client(sentinel) as other:
        other.execute_command("ACL", "SETUSER", "deaf", "reset", "on", ">pw", "+@connection", "+sentinel", "&*")
    with connect(Address.parse(url_of(sentinel) + "?sentinel_username=deaf&sentinel_password=pw")):
        until(lambda: "+subscribe" in caplog.text, "nobody was told")
        time.sleep(1.5)  # it has tried again
    assert caplog.text.count("+subscribe") == 1
    assert f"the sentinel 127.0.0.1:{sentinel} does not let its user listen (NOPERM" in caplog.text


def test_the_newest_configuration_counts(redis_server: Server) -> None:
    """After a failover some sentinels have not heard of it, and the old master still says that it is one."""
    with stub(free_port(), epoch=3) as old, stub(port_of(redis_server), epoch=4) as new:
        with connect(Address.parse(url_of(old.port, new.port))) as server:
            assert server.execute("PING") == b"PONG"
        old.epoch, old.state = 4, ""
        new.state = "reconf_slaves"  # it leads the failover, and has promoted
        with connect(Address.parse(url_of(old.port, new.port))) as server:
            assert server.execute("PING") == b"PONG"


@pytest.mark.parametrize("state", ["select_slave", "send_slaveof_noone", "wait_promotion"])
def test_while_a_replica_is_promoted_nobody_is_connected_to_the_old_master(redis_server: Server, state: str) -> None:
    with stub(port_of(redis_server)) as one, stub(port_of(redis_server), state=state) as leads:
        error = refused(url_of(one.port, leads.port))
        assert isinstance(error, ServerReplyError)
        assert "are making a replica the master" in str(error)
        assert is_transient(error)
        leads.state = "wait_start"  # it may not be elected
        connect(Address.parse(url_of(one.port, leads.port))).close()


def test_a_master_that_all_of_them_see_down_is_waited_for(redis_server: Server) -> None:
    with stub(port_of(redis_server), flags="s_down,master") as one, stub(port_of(redis_server)) as other:
        connect(Address.parse(url_of(one.port, other.port))).close()
        error = refused(url_of(one.port))
        assert f"report that the master, 127.0.0.1:{port_of(redis_server)}, is down" in str(error)
        assert is_transient(error)


def test_a_replica_that_is_named_is_not_written_to(sentinels: Sentinels) -> None:
    replica = next(port for port in sentinels.servers if port != sentinels.master())
    with stub(replica) as wrong:
        error = refused(url_of(wrong.port))
        assert f"name 127.0.0.1:{replica} as the master, and it is a slave: a failover is in progress" in str(error)
        assert is_transient(error)


def test_a_connection_is_left_when_its_master_is_replaced(redis_server: Server) -> None:
    with stub(port_of(redis_server)) as one, Session(Address.parse(url_of(one.port)), is_known=True) as session:
        first = session.get()
        until(lambda: one.asked == 2, "nobody asked what had happened before the subscription")
        one.publish()
        until(lambda: one.asked == 3, "nobody listened")
        assert session.run(lambda server: server.execute("PING")) == b"PONG"
        assert session.get() is first, "nothing has changed"
        one.epoch = 1
        one.publish()
        until(
            lambda: session.run(lambda server: server.execute("PING")) and session.get() is not first,
            "the connection was kept",
        )


def test_options_take_it_as_they_take_any_url(sentinels: Sentinels) -> None:
    given = {"url": sentinels.url, "streams": "s", "group": "g"}
    assert SourceOptions.parse(given).address.asks_sentinels
