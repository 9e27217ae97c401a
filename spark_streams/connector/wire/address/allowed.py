"""Limits on option values, set in the environment of a driver whose users are not its operators.

    variable                     limits                                                     an entry of its list
    RSTREAM_ALLOW_HOSTS          servers, sentinels, cluster nodes and sockets of `url`     host, host:port, *.domain,
                                                                                            unix:///path
    RSTREAM_ALLOW_FILES          `passwordFile`, `archivePath`, the ssl_… files of `url`    file, or folder of files
    RSTREAM_ALLOW_PROVIDERS      `credentialProvider`, `redrive.transform`, `--transform`   module:function
    RSTREAM_ALLOW_EMBEDDED       `embedded:`                                                embedded:, or folder

A list is separated by commas. An empty variable refuses all values of its kind; an unset variable limits nothing. Paths
are compared with links and `..` resolved, and URLs as redis-py reads them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from spark_streams.connector.errors import InvalidOptionError, NotAllowedError
from spark_streams.connector.wire.address import server_url
from spark_streams.connector.wire.address.address import EMBEDDED, Address
from spark_streams.connector.wire.address.identity import Identity

HOSTS, FILES = "RSTREAM_ALLOW_HOSTS", "RSTREAM_ALLOW_FILES"
PROVIDERS, EMBEDDED_ENGINES = "RSTREAM_ALLOW_PROVIDERS", "RSTREAM_ALLOW_EMBEDDED"
_UNIX = "unix://"
_FILES_OF_URL = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ca_path")

Named = tuple[str, str, str]  # variable that limits it, description, value


def check_server(address: Address) -> None:
    """Refuse a server that is not in the environment's lists. Raises NotAllowedError."""
    if address.is_embedded:
        folder = address.directory
        _check((EMBEDDED_ENGINES, "the bundled engine at", EMBEDDED if folder is None else str(folder)))
    elif HOSTS in os.environ or FILES in os.environ:
        for named in _of_url(address):
            _check(named)


def check_file(option: str, path: str) -> None:
    """Refuse a path that is not in the environment's list. Raises NotAllowedError."""
    _check((FILES, option, path))


def check_function(option: str, name: str) -> None:
    """Refuse a function (module:function) that is not in the environment's list. Raises NotAllowedError."""
    _check((PROVIDERS, option, name))


def check_identity(identity: Identity) -> None:
    """Refuse a file or a function that is not in the environment's lists. Raises NotAllowedError."""
    if identity.password_file:
        _check((FILES, "passwordFile", identity.password_file))
    if identity.provider:
        check_function("credentialProvider", identity.provider)


def _of_url(address: Address) -> Iterator[Named]:
    """Yield hosts, sockets and files, as redis-py reads them from the URL of each server of the address."""
    from spark_streams.connector.wire.address.redis_py import parse_server_url

    one_by_one = server_url.of_sentinel if address.asks_sentinels else server_url.of_node
    names_several = address.asks_sentinels or address.is_cluster
    for url in [one_by_one(address.url, node) for node in address.nodes] if names_several else [address.url]:
        try:
            parts = parse_server_url(url)
        except (ValueError, TypeError) as error:
            raise InvalidOptionError(f"url {str(address)!r} cannot be read: {error}") from None
        if url.startswith(_UNIX):
            yield HOSTS, "socket", f"{_UNIX}{os.path.normpath(parts.get('path', ''))}"
        else:
            host, port = parts.get("host", "localhost"), parts.get("port", 6379)
            yield HOSTS, "host", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for name in _FILES_OF_URL:
            if name in parts:
                yield FILES, name, parts[name]


def _check(named: Named) -> None:
    variable, description, value = named
    listed = os.environ.get(variable)
    if listed is None or any(_LISTS[variable](value, entry.strip()) for entry in listed.split(",") if entry.strip()):
        return
    raise NotAllowedError(
        f"{description} {value} is refused: {variable}, in the environment of this Spark driver, does not list it; use "
        "one that is listed, or ask the operator of the driver to add it"
    )


def _is_host(value: str, entry: str) -> bool:
    if value.startswith(_UNIX) or entry.startswith(_UNIX):
        return (
            value.startswith(_UNIX) and entry.startswith(_UNIX) and _is_within(*(_path(url) for url in (value, entry)))
        )
    requested, allowed = server_url.host_and_port(value.casefold()), server_url.host_and_port(entry.casefold())
    if requested is None or allowed is None or allowed[1] not in (None, requested[1]):
        return False
    host, pattern = requested[0], allowed[0]
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _path(url: str) -> str:
    return url.removeprefix(_UNIX)


def _is_within(value: str, entry: str) -> bool:
    """Whether a path is this entry or below it. A URI is not a path of this machine."""
    if "://" in value:
        return False
    try:
        path, allowed = (Path(os.path.realpath(text)) for text in (value, entry))
    except ValueError:  # a path with a NUL in it
        return False
    return Path(entry).is_absolute() and path.is_relative_to(allowed)


def _is_engine(value: str, entry: str) -> bool:
    if EMBEDDED in (value, entry):
        return value == entry
    return _is_within(value, entry)


def _is_same(value: str, entry: str) -> bool:
    return value == entry


_LISTS: dict[str, Callable[[str, str], bool]] = {
    HOSTS: _is_host,
    FILES: _is_within,
    PROVIDERS: _is_same,
    EMBEDDED_ENGINES: _is_engine,
}
