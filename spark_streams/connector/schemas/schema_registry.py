"""The schemas of a registry with Confluent's HTTP interface. One request for each ID or subject, and process.

    GET /schemas/ids/ID                          {"schema": …, "schemaType": …, "references": […]}
    GET /subjects/SUBJECT/versions/VERSION       the same and its ID, for a reference, or to encode by

A registry that is away (no connection, no answer in time, 5xx, 429) is waited for, as a server is. A refused login and
an answer that is no registry's stop the query at once.

An ID or a subject is unknown by HTTP 404 with an error code 404xx. Any other answer without a schema is no registry's:
if it made dead letters, a wrong URL would make them of all entries. Where this process has read a schema, the URL is
right: then HTTP 400, 404 and 422 are about the ID.

Anyone may write values with any IDs. So IDs are asked for at once, and at most MOST_UNKNOWN of them in a minute are
unknown: an ID is known, unknown, or not asked for, and then it waits.
"""

from __future__ import annotations

import http.client
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import RegistryError, RetriesExhaustedError
from spark_streams.connector.schemas.payload_format import NO_LOGIN, Login
from spark_streams.connector.wire.address import DEFAULT_PATIENCE, Patience
from spark_streams.connector.wire.session import Backoff

_UNKNOWN_FOR = 60.0  # seconds until an unknown ID is asked for again: a replica of a registry may lag
_LARGEST_ID = 2**31 - 1  # a larger one is unknown without a request: registries cannot parse it
_OF_AN_ID = (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.NOT_FOUND, http.HTTPStatus.UNPROCESSABLE_ENTITY)
MOST_UNKNOWN = 1_000  # IDs that are remembered for this time: others wait
MOST_AT_ONCE = 16  # requests
MOST_KEPT = 10_000  # of what values may name: a value may hold any ID
_LARGEST = 16 << 20  # bytes of an answer
_DEEPEST = 20  # references of references
_MOST_REFERENCES = 1_000  # of one schema
_log = logging.getLogger("spark_streams.schemas")
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True)
class Schema:
    text: str  # for Protobuf: its descriptor in base64
    kind: str = "AVRO"
    references: tuple[Schema, ...] = ()  # all schemas that it needs, each after those that it needs itself
    name: str = ""  # by which another schema refers to it
    schema_id: int = 0


class _AwayError(Exception):
    """The registry did not answer, or not now."""


@dataclass
class Registry:
    """A client of one registry."""

    url: str
    login: Login = NO_LOGIN
    serialized: bool = False  # schemas are asked for as descriptors of Protobuf
    patience: Patience = DEFAULT_PATIENCE
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _schemas: dict[int, Schema] = field(default_factory=dict)
    _versions: dict[tuple[str, str], Schema] = field(default_factory=dict)
    _unknown: dict[int, float] = field(default_factory=dict)  # when they were asked for, the oldest first
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def schema(self, schema_id: int) -> Schema | None:
        """Return a schema, None if the registry has none of this ID. Raises RegistryError."""
        return self.answers([schema_id])[schema_id]

    def answers(self, schema_ids: Iterable[int]) -> dict[int, Schema | None]:
        """Return the schemas of these IDs, None for an unknown one. They are asked for at once. What may not be asked
        for yet waits: the first IDs wait the least. Raises RegistryError."""
        found: dict[int, Schema | None] = {}
        left = [*schema_ids]
        while left:
            with self._lock:
                self._ask_for(left)
                found |= {one: self._schemas.get(one) for one in left if self._is_answered(one)}
                pause = self._pause()
            left = [one for one in left if one not in found]
            if left and pause:
                _log.warning(
                    "%d schema IDs were unknown to %s in the last minute: %d others wait",
                    MOST_UNKNOWN,
                    self.url,
                    len(left),
                )
                self.sleep(pause)
        return found

    def _is_answered(self, schema_id: int) -> bool:
        return schema_id in self._schemas or schema_id in self._unknown or schema_id > _LARGEST_ID

    def _pause(self) -> float:
        """Return the seconds until another ID may be asked for."""
        if len(self._unknown) < MOST_UNKNOWN:
            return 0
        return max(0, self._unknown[next(iter(self._unknown))] + _UNKNOWN_FOR - self.clock())

    def _ask_for(self, schema_ids: Sequence[int]) -> None:
        """Ask for those IDs whose answers are not known, the first ones if they are too many."""
        now = self.clock()
        while self._unknown and now - self._unknown[next(iter(self._unknown))] >= _UNKNOWN_FOR:
            del self._unknown[next(iter(self._unknown))]
        asked = [one for one in schema_ids if not self._is_answered(one)][: MOST_UNKNOWN - len(self._unknown)]
        for schema_id, schema in zip(asked, self._answers(asked), strict=True):
            if schema is None:
                self._unknown[schema_id] = now
            else:
                self._schemas[schema_id] = schema

    def _answers(self, schema_ids: list[int]) -> list[Schema | None]:
        if len(schema_ids) < 2:
            return [self._answer(one) for one in schema_ids]
        with ThreadPoolExecutor(min(len(schema_ids), MOST_AT_ONCE)) as pool:
            return list(pool.map(self._answer, schema_ids))

    def _answer(self, schema_id: int) -> Schema | None:
        answer = self._ask(f"/schemas/ids/{schema_id}")
        return None if answer is None else self._parsed(answer, schema_id)

    def version(self, subject: str, version: str) -> Schema:
        """Return a version of a subject, or its latest at the first call. Raises RegistryError if there is none."""
        with self._lock:
            if (subject, version) not in self._versions:
                answer = self._ask(_path(subject, version))
                if answer is None:
                    raise RegistryError(
                        f"subject {subject!r} has no schema (version {version}) in the registry {self.url}. encode "
                        "does not register schemas. Register one, or give the name of another subject"
                    )
                if type(answer.get("id")) is not int:
                    raise RegistryError(f"{self.url} gives subject {subject!r} no ID: registry= must be its root")
                self._versions[subject, version] = self._parsed(answer, answer["id"])
            return self._versions[subject, version]

    def _parsed(self, answer: Json, schema_id: int) -> Schema:
        """Return the schema with all that it needs: each reference is asked for once. Raises RegistryError."""
        found: dict[tuple[str, str], Schema] = {}

        def add(references: list[tuple[str, str]], depth: int) -> None:
            for name, path in references:
                if (name, path) in found or (name, path) in under:
                    continue
                needed = self._ask(path) if depth < _DEEPEST and len(found) < _MOST_REFERENCES else None
                if needed is None:
                    raise RegistryError(f"{self.url} has no {path}, to which a schema refers: register it there")
                under.add((name, path))
                text, kind, more = self._parts(needed)
                add(more, depth + 1)
                found[name, path] = Schema(text, kind, (), name)

        under: set[tuple[str, str]] = set()
        text, kind, references = self._parts(answer)
        add(references, 0)
        return Schema(text, kind, tuple(found.values()), "", schema_id)

    def _parts(self, answer: Json) -> tuple[str, str, list[tuple[str, str]]]:
        """Return (text, format, (name, path) of each reference) of an answer. Raises RegistryError."""
        text, kind, references = answer["schema"], answer.get("schemaType") or "AVRO", answer.get("references") or []
        is_list = isinstance(references, list) and all(
            isinstance(one, dict) and {"name", "subject", "version"} <= one.keys() for one in references
        )
        if not isinstance(text, str) or not isinstance(kind, str) or not is_list:
            raise RegistryError(
                f"{self.url} gives a schema whose text, format or references have another form than a registry's: "
                "registry= must be the root of the registry"
            )
        return text, kind, [(str(one["name"]), _path(str(one["subject"]), str(one["version"]))) for one in references]

    def _ask(self, path: str) -> Json:
        """Return the answer, None if the registry does not have what is asked for. Raises RegistryError."""
        backoff = Backoff(self.patience.limit, self.patience)
        while True:
            try:
                answer = self._request(path)
            except _AwayError as error:
                try:
                    backoff.wait(f"the request {path}", f"the schema registry {self.url}", str(error), lost=True)
                except RetriesExhaustedError as exhausted:
                    raise RegistryError(exhausted.message) from None
                continue
            backoff.succeeded()
            return answer

    def _request(self, path: str) -> Json:
        status, body = self._get(path)
        answer = _json(body)
        if status != http.HTTPStatus.OK:
            return self._refused(status, answer, path)
        if not isinstance(answer, dict) or "schema" not in answer:
            raise RegistryError(
                f"{self.url}{path} answered HTTP {status} with no schema: registry= must be the root of the registry"
            )
        return answer

    def _get(self, path: str) -> tuple[int, bytes]:
        """Return (HTTP status, body). Raises _AwayError or RegistryError."""
        request = Request(f"{self.url}{path}{'?format=serialized' if self.serialized else ''}")
        request.add_header("Accept", _ACCEPT)
        for name, value in self.login.header().items():
            request.add_unredirected_header(name, value)  # another host must not get it
        try:
            with urlopen(request, timeout=self.patience.reply, context=client_context()) as reply:
                return http.HTTPStatus.OK, reply.read(_LARGEST)
        except HTTPError as error:
            with error:
                if error.code >= 500 or error.code == http.HTTPStatus.TOO_MANY_REQUESTS:
                    raise _AwayError(f"HTTP {error.code}") from None
                return error.code, error.read(_LARGEST)
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise RegistryError(f"the certificate of {self.url} is not accepted: {reason.verify_message}") from None
            raise _AwayError(f"{type(reason).__name__}: {reason}") from None

    def _refused(self, status: int, answer: Json, path: str) -> None:
        """Return if the registry does not have the schema. Raises RegistryError."""
        if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
            raise RegistryError(
                f"{self.url}{path} refuses the login (HTTP {status}): give login=(user, password file) or "
                "login='module:function' of a user who may read schemas"
            )
        code = answer.get("error_code") if isinstance(answer, dict) else None
        if status == http.HTTPStatus.NOT_FOUND and isinstance(code, int) and code // 100 == 404:
            return
        if not (self._schemas and path.startswith("/schemas/ids/") and status in _OF_AN_ID):
            raise RegistryError(
                f"{self.url}{path} answered HTTP {status}, as no schema registry does: expected is a schema, or HTTP "
                "404 with an error_code of 404xx; registry= must be the root of the registry"
            )


def _path(subject: str, version: str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}"


def _json(body: bytes) -> Json:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def client_context() -> ssl.SSLContext:
    """Return what a client of a registry accepts: TLS 1.2 or later; Debian's Python leaves it to OpenSSL."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
