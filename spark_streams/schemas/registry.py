"""The schemas of a registry with Confluent's HTTP interface. One request for each ID or subject, and process.

    GET /schemas/ids/ID                          {"schema": …, "schemaType": …, "references": […]}
    GET /subjects/SUBJECT/versions/VERSION       the same and its ID, for a reference, or to encode by

A registry that is away (no connection, no answer in time, 5xx, 429) is waited for, as a server is. A refused login and
any other answer stop the query at once.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from spark_streams.errors import InvalidOptionError, RegistryError, RetriesExhaustedError
from spark_streams.model.untyped import Json
from spark_streams.wire.address import http_url
from spark_streams.wire.address.identity import password_in
from spark_streams.wire.address.patience import DEFAULT_PATIENCE, Patience
from spark_streams.wire.connection.retry import Backoff

_UNKNOWN_FOR = 60.0  # seconds until an unknown ID is asked for again: a replica of a registry may lag
MOST_KEPT = 10_000  # of what values may name: a value may hold any ID
_LARGEST = 16 << 20  # bytes of an answer
_DEEPEST = 20  # references of references
_MOST_REFERENCES = 1_000  # of one schema
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True)
class Schema:
    """A schema. text: its text; Protobuf: its descriptor in base64. name: by which another schema refers to it."""

    text: str
    kind: str = "AVRO"
    references: tuple[Schema, ...] = ()
    name: str = ""
    schema_id: int = 0

    def all_references(self) -> Iterator[Schema]:
        """Yield the schemas that this one needs, each after those that it needs itself."""
        yield from self.references


@dataclass(frozen=True)
class Login:
    """A user with a password file, or a function (module:function) that returns (user, password). Read for each
    request, in the process that sends it.
    """

    user: str = ""
    file: str = ""
    function: str = ""

    def header(self) -> dict[str, str]:
        """Return the header of a request. Raises LoginError, InvalidOptionError or RegistryError."""
        if self.function:
            user, password = self._of_function()
        elif self.file:
            user, password = self.user, password_in(self.file)
        else:
            return {}
        return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}

    def _of_function(self) -> tuple[str, str]:
        module, _, name = self.function.partition(":")
        try:
            function = getattr(import_module(module), name)
        except Exception as error:  # noqa: BLE001 - it is the user's code
            raise InvalidOptionError(
                f"login {self.function!r} cannot be used: {type(error).__name__}: {error}; it is module:function, "
                "where the driver and every executor can import it"
            ) from None
        try:
            user, password = function()
        except Exception as error:  # noqa: BLE001 - it is the user's code, whose message may have the password
            raise RegistryError(
                f"the function {self.function!r} of login failed with {type(error).__name__}: it must return (user, "
                "password)"
            ) from None
        return user, password


NO_LOGIN = Login()


class _AwayError(Exception):
    """The registry did not answer, or not now."""


@dataclass
class Registry:
    """A client of one registry. serialized: schemas are asked for as descriptors of Protobuf."""

    url: str
    login: Login = NO_LOGIN
    serialized: bool = False
    patience: Patience = DEFAULT_PATIENCE
    clock: Callable[[], float] = time.monotonic
    _schemas: dict[int, Schema] = field(default_factory=dict)
    _versions: dict[tuple[str, str], Schema] = field(default_factory=dict)
    _unknown: dict[int, float] = field(default_factory=dict)  # when they were asked for
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def schema(self, schema_id: int) -> Schema | None:
        """Return a schema, None if the registry has none of this ID. Raises RegistryError."""
        with self._lock:
            if schema_id in self._schemas:
                return self._schemas[schema_id]
            if self.clock() - self._unknown.get(schema_id, -_UNKNOWN_FOR) < _UNKNOWN_FOR:
                return None
            answer = self._ask(f"/schemas/ids/{schema_id}")
            if answer is None:
                if len(self._unknown) >= MOST_KEPT:
                    self._unknown.clear()
                self._unknown[schema_id] = self.clock()
                return None
            found = self._schemas[schema_id] = self._parsed(answer, schema_id)
            return found

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
        request = Request(f"{self.url}{path}{'?format=serialized' if self.serialized else ''}")
        request.add_header("Accept", _ACCEPT)
        for name, value in self.login.header().items():
            request.add_unredirected_header(name, value)  # another host must not get it
        try:
            with urlopen(request, timeout=self.patience.reply) as reply:
                body = reply.read(_LARGEST)
        except HTTPError as error:
            with error:
                return self._refused(error, path)
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise RegistryError(f"the certificate of {self.url} is not accepted: {reason.verify_message}") from None
            raise _AwayError(f"{type(reason).__name__}: {reason}") from None
        answer = _json(body)
        if not isinstance(answer, dict) or "schema" not in answer:
            raise RegistryError(
                f"{self.url}{path} answered, but with no schema: registry= must be the root of the registry"
            )
        return answer

    def _refused(self, error: HTTPError, path: str) -> None:
        """Return if the registry does not have the schema. Raises _AwayError or RegistryError."""
        if error.code >= 500 or error.code == http.HTTPStatus.TOO_MANY_REQUESTS:
            raise _AwayError(f"HTTP {error.code}")
        if error.code in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
            raise RegistryError(
                f"{self.url}{path} refuses the login (HTTP {error.code}): give login=(user, password file) or "
                "login='module:function' of a user who may read schemas"
            )
        answer = _json(error.read(_LARGEST))
        code = answer.get("error_code") if isinstance(answer, dict) else None
        if error.code == http.HTTPStatus.NOT_FOUND and isinstance(code, int) and code // 100 == 404:
            return
        raise RegistryError(
            f"{self.url}{path} answered HTTP {error.code}, as no schema registry does: registry= must be the root of "
            "the registry"
        )


def check_url(url: str) -> str:
    """Return the URL of a registry without a slash at its end. Raises InvalidOptionError, without a password."""
    if not http_url.is_root(url):
        raise InvalidOptionError(
            "registry must be http://host:port or https://host:port, without a login and a query: give the login as "
            "login=(user, password file)"
        )
    return url.rstrip("/")


def _path(subject: str, version: str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}"


def _json(body: bytes) -> Json:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
