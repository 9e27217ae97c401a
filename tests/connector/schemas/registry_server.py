"""A schema registry with Confluent's interface in the process of the test. It counts requests, fails and asks for a
login as the test says."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit


class _Gauge:
    """most: how many were within it at the same time."""

    def __init__(self) -> None:
        self.most = self._now = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._lock:
            self._now -= 1


class RegistryServer:
    """answers: by path; faults: HTTP codes of the next requests, 0 closes the connection; login: user:password."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.unknown: tuple[int, Any] = (404, {"error_code": 40403, "message": "Schema not found"})
        self.pause = 0.0  # seconds before each answer
        self.in_progress = _Gauge()
        self.faults: list[int] = []
        self.login = ""
        self.leads_to = ""  # URL of another server, to which each request is redirected
        self.logins: list[bool] = []  # whether each request had one
        self.requests: Counter[str] = Counter()
        self.queries: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def add(self, schema_id: int, schema: object, kind: str = "AVRO", references: list[dict[str, object]] = []) -> None:  # noqa: B006
        text = schema if isinstance(schema, str) else json.dumps(schema)
        answer: dict[str, Any] = {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})
        self.answers[f"/schemas/ids/{schema_id}"] = answer | ({"references": references} if references else {})

    def add_version(self, subject: str, version: int, schema: object, kind: str = "AVRO") -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.answers[f"/subjects/{subject}/versions/{version}"] = {"schema": text, "schemaType": kind}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                registry.requests[path] += 1
                with registry.in_progress:
                    time.sleep(registry.pause)
                registry.queries.add(urlsplit(self.path).query)
                registry.logins.append("Authorization" in self.headers)
                if registry.leads_to:
                    self.send_response(302)
                    self.send_header("Location", registry.leads_to + self.path)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if registry.faults:
                    code = registry.faults.pop(0)
                    if code:
                        self.reply(code, {"error_code": code * 100 + 1, "message": "fault"})
                    return
                login = f"Basic {b64encode(registry.login.encode()).decode()}"
                if registry.login and self.headers.get("Authorization") != login:
                    self.reply(401, {"error_code": 401, "message": "Unauthorized"})
                elif path in registry.answers:
                    self.reply(200, registry.answers[path])
                elif path.startswith(("/schemas/ids/", "/subjects/")):
                    self.reply(*registry.unknown)
                else:
                    self.reply(404, {"error_code": 404, "message": "HTTP 404 Not Found"})

            def reply(self, code: int, content: Any) -> None:
                body = b"" if content is None else json.dumps(content).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        return Handler

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
