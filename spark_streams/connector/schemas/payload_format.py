"""How values are encoded, and the arguments that say it. Without Spark."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from spark_streams.connector.errors import ConfigError, InvalidOptionError, RegistryError, RStreamError, SchemaError
from spark_streams.connector.schemas.schema_columns import REMEDY
from spark_streams.connector.wire import server_url as http_url
from spark_streams.connector.wire.address import password_in

AVRO, PROTOBUF, JSON = "avro", "protobuf", "json"
FORMATS = (AVRO, PROTOBUF, JSON)


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


@dataclass(frozen=True)
class PayloadFormat:
    """How values are encoded, and as what they are read. It goes to the tasks: it holds no password."""

    format: str
    schema: str = ""  # text of the reader's schema, or of the only one
    descriptors: bytes = field(default=b"", repr=False)  # for Protobuf, with `message`: in place of the schema
    message: str = ""
    registry: str = ""  # its URL
    login: Login = NO_LOGIN
    framed: bool = False  # the framing is there


def form_of(format: str, registry: str, schema: str, message: str, login: Login, framed: bool | None) -> PayloadFormat:
    """Return the form that arguments of `decode` name. Raises InvalidOptionError or SchemaError."""
    check_format(format, registry, login)
    if not registry and not schema:
        raise InvalidOptionError("decode needs registry or schema: set one of them")
    if registry and framed is False:
        raise InvalidOptionError("framed=False contradicts registry, which needs the ID before each value: remove one")
    if bool(message) != (format == PROTOBUF and bool(schema)):
        raise InvalidOptionError(
            "message names the Protobuf message of schema: set both for format='protobuf', or neither"
        )
    url = check_url(registry) if registry else ""
    text, descriptors = read_schema(format, schema)
    return PayloadFormat(format, text, descriptors, message, url, login, bool(registry) if framed is None else framed)


def check_format(format: str, registry: str, login: Login) -> None:
    """Raise InvalidOptionError for a format that does not exist, and for a login without a registry."""
    if format not in FORMATS:
        raise InvalidOptionError(f"format={format!r} must be one of {', '.join(map(repr, FORMATS))}")
    if login != NO_LOGIN and not registry:
        raise InvalidOptionError("login is for a registry: set registry, or remove login")


def read_schema(format: str, schema: str) -> tuple[str, bytes]:
    """Return (text, descriptors) of a schema that is a text or the path of a file. Raises SchemaError."""
    if not schema or (format != PROTOBUF and schema.lstrip()[:1] in ("{", "[", '"')):
        return schema, b""
    try:
        content = Path(schema).read_bytes()
        return ("", content) if format == PROTOBUF else (content.decode(), b"")
    except OSError as error:
        raise SchemaError(f"schema {schema!r} cannot be read: {error.strerror}; give a text or a file") from None
    except UnicodeDecodeError:
        raise SchemaError(f"schema {schema!r} is not UTF-8: give the file of a schema in {format}") from None


def login_of(login: tuple[str, str | os.PathLike[str]] | str | None) -> Login:
    """Return the login that an argument names. Raises InvalidOptionError."""
    if login is None:
        return NO_LOGIN
    if isinstance(login, str):
        module, colon, function = login.partition(":")
        if module and colon and function.isidentifier():
            return Login(function=login)
    elif len(login) == 2 and login[0] and login[1]:
        return Login(login[0], os.fspath(login[1]))
    raise InvalidOptionError("login must be (user, password file) or 'module:function'")


@contextmanager
def valid_schema(format: str, remedy: str) -> Iterator[None]:
    """Raise SchemaError if the block finds that a schema cannot be used. remedy: for what its columns cannot be."""
    try:
        yield
    except ConfigError as error:
        raise SchemaError(f"schema: {error.message.removesuffix(f': {REMEDY}')}; {remedy}") from None
    except RStreamError:
        raise
    except Exception as error:  # noqa: BLE001 - the libraries raise many errors for a wrong schema
        raise SchemaError(f"schema is not valid {format}: {type(error).__name__} {error}; correct it") from None


def check_url(url: str) -> str:
    """Return the URL of a registry without a slash at its end. Raises InvalidOptionError, without a password."""
    if not http_url.is_root(url):
        raise InvalidOptionError(
            "registry must be http://host:port or https://host:port, without a login and a query: give the login as "
            "login=(user, password file)"
        )
    return url.rstrip("/")
