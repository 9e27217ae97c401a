"""A collector of OpenLineage events in the process of the test, and the rules that each event keeps."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attr
import jsonschema
from openlineage.client.event_v2 import RunEvent
from openlineage.client.facet_v2 import BaseFacet, InputDatasetFacet
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from spark_streams.connector.watch.lineage import openlineage_events as events
from spark_streams.connector.watch.lineage.openlineage_events import SCHEMA_URL

OURS = Path(events.__file__).parent / "RstreamConsumerGroupInputDatasetFacet.json"
# The part of OpenLineage.json to which our schema refers.
BASE = {
    "$id": InputDatasetFacet._get_schema().partition("#")[0],
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"InputDatasetFacet": {"type": "object", "required": ["_producer", "_schemaURL"]}},
}

Event = dict[str, Any]


class Collector:
    """events: in their order; faults: HTTP codes of the next requests; logins: the header of each request."""

    def __init__(self, port: int = 0) -> None:
        self.events: list[Event] = []
        self.faults: list[int] = []
        self.logins: list[str | None] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                collector.logins.append(self.headers.get("Authorization"))
                code = collector.faults.pop(0) if collector.faults else 201
                if code == 201 and self.path == "/api/v1/lineage":
                    collector.events.append(event)
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        return Handler

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, job: str) -> list[Event]:
        """The events of a query, each checked."""
        found = [event for event in self.events if event["job"]["name"] == job]
        for event in found:
            check(event)
        return found


def check(event: Event) -> None:
    """Hold an event against the client's classes, which OpenLineage generates from its schemas, and against ours."""
    _fits(RunEvent, event)
    RunEvent(eventTime=event["eventTime"], run=event["run"], job=event["job"])
    datasets = [*event["inputs"], *event["outputs"]]
    holders = [event["run"], event["job"], *datasets]
    groups = [one.get(name, {}) for one in holders for name in ("facets", "inputFacets", "outputFacets")]
    facets = [facet for group in groups for facet in group.values()]
    assert facets
    known = {kind._get_schema(): kind for kind in _all(BaseFacet)}
    for facet in facets:
        _fits(known[facet["_schemaURL"]], facet)
        if facet["_schemaURL"] == SCHEMA_URL:
            check_ours({"rstream_consumerGroup": facet})


def check_ours(facets: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError."""
    registry: Registry[Any] = Registry().with_resource(str(BASE["$id"]), DRAFT202012.create_resource(BASE))
    jsonschema.Draft202012Validator(json.loads(OURS.read_text()), registry=registry).validate(facets)


def _fits(kind: type[Any], value: dict[str, Any]) -> None:
    fields = attr.fields_dict(kind)
    required = {name for name, field in fields.items() if field.default is attr.NOTHING}
    assert required <= value.keys() <= fields.keys(), (kind, value)


def _all(kind: type[BaseFacet]) -> Iterator[type[BaseFacet]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all(below)
