"""URLs that name several servers: sentinels, nodes of a cluster. What each says, and what is refused by its form."""

from __future__ import annotations

import itertools

import pytest
import redis

from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.wire import server_url
from spark_streams.connector.wire.address import Address


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        ("redis+sentinel://s1,s2:5/name", (("s1", 26379), ("s2", 5))),
        ("rediss+sentinel://u:p%2C@[::1]:5,[fe80::1%eth0]/name/3", (("::1", 5), ("fe80::1%eth0", 26379))),
        ("redis+cluster://u:p@a:1,b", (("a", 1), ("b", 6379))),
        ("redis://h/2", (("h", 6379),)),
        ("redis://h:/2", (("h", 6379),)),
        ("unix:///run/r.sock", ()),
    ],
)
def test_each_server_has_the_port_that_is_given_or_its_kinds_own(url: str, nodes: tuple[object, ...]) -> None:
    assert Address.parse(url).nodes == nodes


def test_one_server_of_several_is_an_address_with_the_same_login_database_and_parameters() -> None:
    address = Address.parse("rediss+sentinel://me:a%40%3A@s1,s2/a%20name/3?ssl_ca_certs=%2Fx%20y&sentinel_password=q")
    assert (address.asks_sentinels, address.is_cluster) == (True, False)
    assert server_url.master_name(address.url) == "a name"
    one = address.node("::1", 7000)
    assert one.nodes == (("::1", 7000),)
    told = redis.ConnectionPool.from_url(one.resolve()).connection_kwargs
    assert {name: told[name] for name in ("username", "password", "host", "port", "db", "ssl_ca_certs")} == {
        "username": "me", "password": "a@:", "host": "::1", "port": 7000, "db": 3, "ssl_ca_certs": "/x y",
    }  # fmt: skip


def test_a_sentinel_is_given_its_own_login_and_never_the_servers() -> None:
    url = "redis+sentinel://me:secret@s1,s2/name/3?db=4&password=secret&sentinel_password=q%40&socket_timeout=2"
    told = redis.ConnectionPool.from_url(server_url.of_sentinel(url, ("s2", 5))).connection_kwargs
    assert "secret" not in str(told)
    assert {name: told.get(name) for name in ("username", "password", "host", "port", "db", "socket_timeout")} == {
        "username": None, "password": "q@", "host": "s2", "port": 5, "db": None, "socket_timeout": 2,
    }  # fmt: skip
    plain = server_url.of_sentinel("redis+sentinel://me:secret@s1,s2/name", ("s1", 26379))
    assert plain == "redis://s1:26379"


@pytest.mark.parametrize(
    ("url", "has"),
    [
        ("redis://h", False),
        ("redis://me@h", True),
        ("redis+cluster://:p@a,b", True),
        ("unix:///s?username=me", True),
        ("redis+sentinel://s/name?sentinel_password=p", False),
    ],
)
def test_whether_a_url_holds_a_login_for_the_server(url: str, has: bool) -> None:
    assert server_url.has_login(Address.parse(url).url) == has


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://s1,s2", "does not name the master: write redis[+]sentinel://host:26379,host:26379/name"),
        ("redis+sentinel:///name", "names no host"),
        ("redis+sentinel://a,,b/name", "host and port cannot be read"),
        ("redis+sentinel://a:1,b:99999/name", "host and port cannot be read"),
        ("redis+sentinel://a/name/x", "the database is not a number"),
        ("redis+sentinel://a/name?sentinel_pasword=x", "did you mean 'sentinel_password'"),
        ("redis+cluster://a/name", "the database is not a number"),
        ("redis+cluster://a?ssl_cert_reqs=none", "unknown parameter 'ssl_cert_reqs'"),
        ("redis://a:0", "host and port cannot be read"),
        ("redis://a/0#b", "has a '#'"),
        ("redis://a:1,b:2", "host and port cannot be read; write redis://host:port/db"),
        ("redis+sentinal://a/name", "is not a server address; write .*redis[+]sentinel"),
    ],
)
def test_what_is_refused_by_its_form(url: str, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        Address.parse(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rediss//user:secret@host:6379/0", "rediss//***@host:6379/0"),
        ("reds://:se@cret@host:6379", "reds://***@host:6379"),
        ("reds://host:6379/0?password=secret", "reds://host:6379/0?***"),
        ("redis//host?password=a@secret", "redis//***"),
        ("user:secret@host:6379", "***@host:6379"),
        ("redis:host:6379", "redis:host:6379"),
        ("user:secret", "(not shown, it may hold a password)"),
        ("se/cret!", "(not shown, it may hold a password)"),
        ("secret:/x!", "(not shown, it may hold a password)"),
        ("se://cret!", "(not shown, it may hold a password)"),
        ("http://u:secret@host:1/a/path?q", "http://***"),
        ("redis://user:12?secret@host", "redis://***?***"),
        ("redis://:12?secret=x@host", "redis://***?***"),
        ("redis://u:se@12?cret@host:1", "redis://***?***"),
        ("redis://host?username=me@secret&db=2", "redis://host?username=***&db=2"),
    ],
)
def test_a_url_is_shown_without_its_login_however_it_is_mistyped(url: str, shown: str) -> None:
    """A mistyped URL can be recognized; a password with a ? or an @ in it is hidden whole."""
    assert server_url.redacted(url) == shown


_SPECIAL = [*"[]@/?#%&=,:\\ \n\x00é％", "", "%zz", "[::1]", "//", "?x=1&", "\ud800"]
_BEGINNINGS = [
    *(
        f"{scheme}://"
        for scheme in ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "embedded", "valkey")
    ),
    *("embedded:", "redis:/", "redis:", "unix:/", "UNIX://", "redis+sentinal://", " redis://", ""),
]
_HOSTS = ["host:1", "", "[::1]:6379", "/path/s.sock", "a:1,b:2/m/0", "[bad"]
_ENDS = ["", "?db=x", "?pasword=secret", "#f", "/m?sentinel_password=secret&x=1"]


@pytest.mark.parametrize("beginning", _BEGINNINGS)
def test_no_error_and_no_shown_form_has_a_part_of_the_password(beginning: str) -> None:
    for before, after, host, end in itertools.product(_SPECIAL, _SPECIAL[:12], _HOSTS, _ENDS):
        url = f"{beginning}user:{before}secret{after}secret@{host}{end}"
        try:
            texts = [str(Address.parse(url))]
        except InvalidOptionError as error:
            texts = [str(error), repr(error)]
        assert "secret" not in "".join([*texts, server_url.redacted(url)]), url
