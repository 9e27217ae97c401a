"""HTTP at the port: a web page that sends a POST to a server without a password runs none of its body's commands."""

from __future__ import annotations

import pytest

from tests.engine.wire import Wire, command, wire
from tools.servers.server import Server, serving

BODY = b"FLUSHALL\r\nSET stranger 1\r\nSHUTDOWN NOSAVE\r\n"
REQUESTS = {
    "post": b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\nContent-Type: text/plain\r\n\r\n" + BODY,
    "get": b"GET / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\n\r\n" + BODY,
    "lower case": b"post / http/1.1\r\n\r\n" + BODY,
    "host in lower case": b"PUT / HTTP/1.1\r\nhost: 127.0.0.1:6379\r\n\r\n" + BODY,
    "as a request": command("POST", "/") + BODY,
    "behind other commands": b"PING\r\nPOST / HTTP/1.1\r\n\r\n" + BODY,
    "in a transaction": b"MULTI\r\nPOST / HTTP/1.1\r\n\r\n" + BODY,
    "long": b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + BODY * 5000,
}
# What the server may have answered before it closed the connection.
BEFORE = {
    "get": b"-ERR wrong number of arguments for 'get' command\r\n",
    "host in lower case": b"-ERR unknown command 'PUT', with args beginning with: '/' 'HTTP/1.1' \r\n",
    "behind other commands": b"+PONG\r\n",
    "in a transaction": b"+OK\r\n",
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_http_request_runs_no_command(server: Server, kind: str) -> None:
    """The connection is closed at the word POST or Host:, and the data is as it was."""
    with wire(server) as client:
        client.call("SET", "kept", "1")
        http = Wire(server)
        http.socket.sendall(REQUESTS[kind])
        assert http.rest() in (b"", BEFORE.get(kind, b""))
        http.close()
        assert client.call("GET", "kept") == b"1"
        assert client.call("EXISTS", "stranger") == 0


def test_the_log_names_an_http_client_once() -> None:
    """A page that repeats its request does not fill the log."""
    with serving() as served:
        for _ in range(3):
            with wire(served) as http:
                http.socket.sendall(REQUESTS["post"])
                assert http.rest() == b""
        assert served.log().count("POST or Host:") == 1
