"""The form of server URLs: what is allowed, what may be shown, which servers a URL names. Pure.

    redis://user:password@host:port/db                  one server
    unix://user:password@/path/to.sock?db=0
    embedded:, embedded:///dir                          the bundled engine
    redis+sentinel://user:password@s1:26379,s2/name/db  the master that the sentinels name. The login is the master's;
                                                        the sentinels' own: sentinel_username, sentinel_password
    redis+cluster://user:password@a:6379,b/db           some nodes of a cluster

With rediss instead of redis, all connections use TLS.
"""

from __future__ import annotations

import difflib
import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from spark_streams.connector.errors import InvalidOptionError

_ONE = ("redis", "rediss")
SENTINEL = ("redis+sentinel", "rediss+sentinel")
CLUSTER = ("redis+cluster", "rediss+cluster")
_SCHEMES = (*_ONE, "unix", *SENTINEL, *CLUSTER)
_STARTS = ("embedded:", *(f"{scheme}://" for scheme in _SCHEMES))
_HOW = "write redis://host:port/db, redis+sentinel://…, redis+cluster://…, rediss…, unix:///path/to.sock or embedded:"
# Examples of the URL forms with hosts.
_MODEL = {
    **dict.fromkeys(_ONE, "redis://host:port/db"),
    **dict.fromkeys(SENTINEL, "redis+sentinel://host:26379,host:26379/name-of-the-master/db"),
    **dict.fromkeys(CLUSTER, "redis+cluster://host:6379,host:6379"),
}
_ESCAPES = "in a password write @ : / ? # % [ ] as %40 %3A %2F %3F %23 %25 %5B %5D"
_PORT, _SENTINEL_PORT = 6379, 26379
_SECONDS = frozenset({"socket_timeout", "socket_connect_timeout", "idle"})
_LOGIN = frozenset({"db", "username", "password", "client_name", "socket_timeout", "socket_connect_timeout"})
_TLS = frozenset(
    {"ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data"}
    | {"ssl_check_hostname", "ssl_password"}
)
_OF_SENTINELS = frozenset({"sentinel_username", "sentinel_password"})
# Parameters that may follow the `?` of each kind of URL.
_PARAMETERS = {
    "redis": _LOGIN,
    "rediss": _LOGIN | _TLS,
    "unix": _LOGIN,
    "redis+sentinel": _LOGIN | _OF_SENTINELS,
    "rediss+sentinel": _LOGIN | _OF_SENTINELS | _TLS,
    "redis+cluster": _LOGIN,
    "rediss+cluster": _LOGIN | _TLS,
    "embedded": frozenset({"idle", "fsync"}),
}
_SHOWN = frozenset({"db", "idle", "fsync", "client_name", "ssl_cert_reqs", "ssl_check_hostname"}) | _SECONDS
_MAY_HOLD_AT = frozenset({"username", "password", "sentinel_username", "sentinel_password", "ssl_password"})
_PLAINLY_NO_SECRET = re.compile(r"^[A-Za-z0-9_.-]+(:\d+)?(/\d*)?$")
# The beginning of a mistyped URL is shown if it resembles a scheme. Any other may be a user's name or a password.
_BEGINNING = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})(:/{0,3}|/{1,3})")
_LIKE_SCHEMES = (*_SCHEMES, "valkey", "valkeys", "http", "https", "tcp", "embedded")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\[\]:@\s]+))(?::(\d{1,5}))?")

Node = tuple[str, int]


def redacted(url: str) -> str:
    """Return the URL without user, password and values of parameters that could hold them."""
    if not url.startswith(_STARTS):
        return url if _PLAINLY_NO_SECRET.match(url) else _mistyped(url)
    head, question, query = url.partition("?")
    begin = _BEGINNING.match(head)
    assert begin is not None  # as each of _STARTS
    scheme, slashes, location = begin[1], begin[2], head[begin.end() :]
    login, separator, location = location.rpartition("@")
    shown = f"{scheme}{slashes}{'***' if login else ''}{separator}{location}"
    if (
        not separator
        and scheme in _MODEL
        and not all(map(_HOST.fullmatch, location.partition("/")[0].rstrip(":").split(",")))
    ):
        shown = f"{scheme}{slashes}***"  # a password, with the host missing
    pairs = [pair.partition("=") for pair in query.split("&")] if question else []
    if any("@" in key + value and key not in _MAY_HOLD_AT for key, _, value in pairs):
        return f"{scheme}{slashes}***?***"  # a password with a ? in it: any other part may be its beginning
    return shown + question + "&".join(k + e + (v if k in _SHOWN else "***") for k, e, v in pairs)


def _mistyped(url: str) -> str:
    """Return the safe part of a text with no known scheme: its beginning and the host, without the login."""
    begin = _BEGINNING.match(url)
    is_scheme = begin is not None and difflib.get_close_matches(begin[1].lower(), _LIKE_SCHEMES, n=1)
    prefix = begin[0] if begin is not None and is_scheme else ""
    location, question, _ = url[len(prefix) :].partition("?")
    login, separator, host = location.rpartition("@")
    if (
        (not prefix and not separator)
        or "@" in url[len(prefix) + len(location) :]
        or not _PLAINLY_NO_SECRET.match(host)
    ):
        return f"{prefix}***" if prefix else "(not shown, it may hold a password)"
    return f"{prefix}{'***' if login else ''}{separator}{host}{'?***' if question else ''}"


def check_url(url: str) -> str:
    """Check a URL's form without the network and return its scheme. Raises InvalidOptionError."""
    if not url.startswith(_STARTS):
        raise InvalidOptionError(f"url {redacted(url)!r} is not a server address; {_HOW}")
    scheme = url.split(":", 1)[0]
    if "#" in url:
        raise InvalidOptionError(f"url {redacted(url)!r} has a '#', which begins no part of an address; {_ESCAPES}")
    try:
        urlsplit(url)
    except ValueError:  # the error's text would repeat a password that was typed in place of the host
        raise InvalidOptionError(f"url {redacted(url)!r} cannot be read; {_ESCAPES}") from None
    if scheme in _MODEL:
        _check_servers(url, scheme)
    elif scheme == "embedded" and urlsplit(url).netloc:
        raise InvalidOptionError(f"url {redacted(url)!r}: write embedded:, embedded:///dir or embedded:?idle=60")
    _check_parameters(url, scheme)
    return scheme


def nodes(url: str) -> tuple[Node, ...]:
    """Return (host, port) of the servers in a checked URL; of sentinels, theirs."""
    scheme, default = url.split(":", 1)[0], _SENTINEL_PORT if url.startswith(SENTINEL) else _PORT
    if scheme not in _MODEL:
        return ()
    matches = [_HOST.fullmatch(host.removesuffix(":")) for host in _host_part(url).split(",")]
    return tuple((match[1] or unquote(match[2]), int(match[3] or default)) for match in matches if match)


def host_and_port(text: str) -> tuple[str, int | None] | None:
    """Return host and port of `host`, `host:port` or `[v6]:port`; None for any other text."""
    match = _HOST.fullmatch(text)
    return None if match is None else (match[1] or match[2], None if match[3] is None else int(match[3]))


def master_name(url: str) -> str:
    """Return the sentinels' name of the master; "" if a checked URL uses no sentinels."""
    return unquote(_path(url)[0]) if url.startswith(SENTINEL) else ""


def has_login(url: str) -> bool:
    """Whether a checked URL holds a user or a password for the server, in any place."""
    return "@" in urlsplit(url).netloc or any(parameter(url, name) is not None for name in ("username", "password"))


def parameter(url: str, name: str) -> str | None:
    """Return the value of this parameter of a checked URL; None if it has none."""
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True)).get(name)


def of_node(url: str, node: Node) -> str:
    """Return the redis-py URL of one server, with all settings of a checked URL of several."""
    parts, database = urlsplit(url), _path(url)[-1]
    parameters = [(k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if k not in _OF_SENTINELS]
    return _build_url(url, parts.netloc.rpartition("@")[0], node, f"/{database}" if database else "", parameters)


def of_sentinel(url: str, node: Node) -> str:
    """Return the redis-py URL of one sentinel: with the sentinels' login, not the server's."""
    parameters = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    login = ":".join(quote(parameters.pop(name, ""), safe="") for name in ("sentinel_username", "sentinel_password"))
    sentinel_parameters = [(k, v) for k, v in parameters.items() if k not in ("db", "username", "password")]
    return _build_url(url, "" if login == ":" else login, node, "", sentinel_parameters)


def _build_url(url: str, login: str, node: Node, path: str, parameters: list[tuple[str, str]]) -> str:
    scheme = url.split(":", 1)[0].partition("+")[0]
    host = f"[{node[0]}]" if ":" in node[0] else quote(node[0])
    query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    return f"{scheme}://{login}{'@' if login else ''}{host}:{node[1]}{path}{query}"


def _host_part(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _path(url: str) -> tuple[str, str]:
    """Return (name of the master, database), as typed; database "" is the first one."""
    path = urlsplit(url).path.strip("/")
    if not url.startswith(SENTINEL):
        return "", path
    name, _, database = path.partition("/")
    return name, database


def _check_servers(url: str, scheme: str) -> None:
    shown, how = redacted(url), f"write {_MODEL[scheme]}"
    hosts = _host_part(url)
    host_texts = hosts.split(",") if scheme not in _ONE else [hosts]
    if not hosts.partition(":")[0]:
        raise InvalidOptionError(f"url {shown!r} names no host; {how}")
    matches = [_HOST.fullmatch(host.removesuffix(":")) for host in host_texts]
    if not all(match is not None and 0 < int(match[3] or _PORT) < 65536 for match in matches):
        raise InvalidOptionError(f"url {shown!r}: host and port cannot be read; {how}")
    name, database = _path(url)
    if scheme in SENTINEL and not name:
        raise InvalidOptionError(f"url {shown!r} does not name the master: {how}")
    if database and not (database.isascii() and database.isdigit()):
        raise InvalidOptionError(f"url {shown!r}: the database is not a number; {how}")


def _check_parameters(url: str, scheme: str) -> None:
    shown, allowed = redacted(url), _PARAMETERS[scheme]
    if shown.endswith("?***"):
        raise InvalidOptionError(f"url {shown!r} cannot be read; {_ESCAPES}")
    pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    names = [name for name, _ in pairs]
    for name, value in pairs:
        if names.count(name) > 1:
            raise InvalidOptionError(f"url {shown!r}: parameter {name!r} is given twice; give it once")
        if name not in allowed:
            similar_names = difflib.get_close_matches(name, allowed, n=1)
            hint = (
                f"did you mean {similar_names[0]!r}?"
                if similar_names
                else f"{scheme}: accepts {', '.join(sorted(allowed))}"
            )
            raise InvalidOptionError(f"url {shown!r}: unknown parameter {name!r}; {hint}")
        if name in _SECONDS and not _is_above_zero(value):
            raise InvalidOptionError(f"url {shown!r}: {name} must be a number of seconds above 0")
        if name == "fsync" and (value not in ("always", "everysec", "no") or not urlsplit(url).path):
            raise InvalidOptionError(f"url {shown!r}: fsync is always, everysec or no, and needs embedded:///directory")
        if name == "db" and not (value.isascii() and value.isdigit()):
            raise InvalidOptionError(f"url {shown!r}: db must be a number")


def _is_above_zero(text: str) -> bool:
    try:
        return 0 < float(text) < 1e9
    except ValueError:
        return False


# -- the URL of another HTTP service -----------------------------------------------------------------------------------


def is_root(url: str) -> bool:
    """Whether this is http(s)://host:port, with or without a path, and without a login and a query."""
    try:
        parts = urlsplit(url)
        is_plain = not ("@" in parts.netloc or parts.query or parts.fragment)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and is_plain
    except ValueError:
        return False
