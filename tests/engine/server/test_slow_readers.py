"""Clients that send more than they have read: as on a real server, they may send everything first."""

from __future__ import annotations

import socket
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.engine.wire import Wire, command, wire
from tools.servers.server import Server
from tools.waiting import until

MB = 1 << 20


def impatient(server: Server) -> redis.Redis:
    """One that gives up after some seconds."""
    return server.client(socket_timeout=15, retry=Retry(NoBackoff(), 0))


@pytest.mark.in_turn
def test_a_pipeline_is_sent_whole_before_its_replies_are_read(server: Server) -> None:
    """redis-py's way, with 40 MB both ways, and with small questions that have large answers."""
    with impatient(server) as client:
        values = [b"%d" % n + b"x" * 2000 for n in range(20_000)]
        pipe = client.pipeline(transaction=False)
        for value in values:
            pipe.echo(value)
        assert pipe.execute() == values
        name = "a stream with a long name " * 10
        client.xadd(name, {"f": "x" * 5000}, id="1-1")
        for _ in range(8000):
            pipe.xinfo_stream(name)
        assert [found["length"] for found in pipe.execute()] == [1] * 8000


def test_what_waits_behind_unread_replies_is_done_in_order(server: Server) -> None:
    """Also behind a command that blocks amid it."""
    with wire(server) as client:
        client.socket.settimeout(20)
        numbers = range(1, 4001)
        for n in numbers:
            client.send("XADD", "s", f"{n}-0", "f", "x" * 5000)
            client.send("XRANGE", "s", f"{n}-0", "+")
            if n in (10, 3000):
                client.send("XREAD", "BLOCK", "50", "STREAMS", "s", "$")
        for n in numbers:
            assert client.reply() == b"%d-0" % n
            assert [entry[0] for entry in client.reply()] == [b"%d-0" % n]
            if n in (10, 3000):
                assert client.reply() is None


def test_others_are_served_while_much_is_caught_up_on(server: Server) -> None:
    """20 MB of commands that waited, and a bystander's PING."""
    with wire(server) as client, wire(server) as other:
        client.socket.settimeout(20)
        client.send("ECHO", b"x" * 30 * MB)
        client.socket.sendall(command("XADD", "s", "*", "f", "x" * 20) * 200_000)
        client.raw_reply()
        worst = 0.0
        while other.call("XLEN", "s") < 200_000:
            begun = time.monotonic()
            assert other.call("PING") == b"PONG"
            worst = max(worst, time.monotonic() - begun)
        assert worst < 0.5


def test_what_a_client_sent_before_it_went_is_done(server: Server) -> None:
    """One that has read nothing, and says that it will send no more."""
    mute = Wire(server)
    mute.socket.settimeout(20)
    mute.socket.sendall(command("ECHO", b"x" * 10_000) * 3000)
    mute.socket.sendall(command("XADD", "s", "1-1", "f", "v"))
    mute.socket.shutdown(socket.SHUT_WR)
    with wire(server) as client:
        until(lambda: client.call("XLEN", "s") == 1, "the entry is not added")
        until(lambda: client.call("CLIENT", "LIST").count(b"\n") == 1, "the other client is still connected")
    mute.close()
