"""Logins by OpenID Connect: who gets which role, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from click.testing import CliRunner
from joserfc.jwk import RSAKey

from spark_streams.cli import main
from spark_streams.connector.errors import ConfigError
from spark_streams.operations.console.login.attempts import PER_NAME
from spark_streams.operations.console.login.oidc import Provider as Settings
from spark_streams.operations.console.login.users import Users
from tests.operations.console.browser import Answer, Browser, form_to
from tests.operations.console.process import Console, running_console, write_users
from tests.operations.console.provider import CLIENT, SECRET, Provider, running_provider
from tests.operations.console.test_users import log_in
from tools.servers.server import Server, running_engine

pytestmark = pytest.mark.in_turn


def write_settings(path: Path, issuer: str, more: str = "") -> Path:
    path.write_text(
        f'issuer = "{issuer}"\nclient_id = "{CLIENT}"\nclient_secret = "{SECRET}"\nclaim = "groups"\n'
        f'view = ["staff"]\nwrite = ["ops", "admins"]\n{more}'
    )
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def one_console(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("oidc")
    settings = write_settings(folder / "oidc.toml", provider.issuer)
    users = write_users(folder / "users", eve="geheim")
    with (
        running_engine() as server,
        running_console(
            server.url, "--write", "--behind-proxy", "--oidc", str(settings), "--users", str(users)
        ) as console,
    ):
        yield console


@pytest.fixture
def console(one_console: Console, provider: Provider) -> Console:
    provider.claims, provider.key = {}, None
    return one_console


_addresses = itertools.count(1)


def by_provider(browser: Browser, change: Callable[[str], str] = str, address: str = "") -> Answer:
    """Log in as a browser does: to the provider, and back. change: of the path to which it comes back."""
    there = browser.get("/oidc/login")
    assert there.status == 302, there.text
    url = urlsplit(there.headers["location"])
    back = urlsplit(Browser(f"http://{url.netloc}").get(f"{url.path}?{url.query}").headers["location"])
    assert (back.scheme, back.netloc) == ("https", urlsplit(browser.url).netloc)
    headers = {"x_forwarded_for": address or f"10.0.0.{next(_addresses)}"}
    return browser.get(change(f"{back.path}?{back.query}"), **headers)


def test_groups_of_the_provider_have_roles(console: Console, provider: Provider) -> None:
    given = {"view": [["staff"]], "write": [["x", "ops"], ["ops", "staff"], "admins"]}
    for role, groups in [(role, groups) for role, several in given.items() for groups in several]:
        provider.claims = {"groups": groups}
        browser = Browser(console.url)
        assert browser.get("/streams").headers["location"] == "/login"
        assert f"Log in by {urlsplit(provider.issuer).netloc}" in browser.get("/login").text
        answer = by_provider(browser)
        assert answer.status == 200, answer.text
        assert answer.headers["refresh"] == "0; url=/"
        assert f"oidc:ann (sub u1 at {provider.issuer}) has the role {role}" in answer.text
        page = browser.get("/streams").text
        assert ("has the role view" in page) == (role == "view")
        assert provider.asked["code_challenge_method"] == "S256"
        assert len(provider.asked["nonce"]) >= 16
        planned = browser.post("/plan", {"action": "add", "names": "s", "new.name": "n", "new.value": "1"})
        assert ('action="/changes"' in planned.text) == (role == "write"), planned.text
        assert ("Ask for the role write" in planned.text) == (role == "view")
        made = browser.post("/changes", {"arguments": "[]", "token": "1|x"})
        assert made.status == 403
        assert ("has the role view" in made.text) == (role == "view")
        old = dict(browser.cookies)
        assert browser.post("/logout", form_to(browser.get("/").text, "/logout")).status == 303
        browser.cookies = old
        assert browser.get("/streams").headers["location"] == "/login"  # the copied cookie is worth nothing
    lines = console.output()
    assert lines.count(f'"event": "login", "user": "oidc:ann (sub u1 at {provider.issuer})"') == 4
    assert '"role": "view"' in lines


@pytest.mark.parametrize("groups", [None, [], ["other"], [5], "staf", {"staff": 1}])
def test_a_user_without_a_role_gets_a_page_that_says_so(console: Console, provider: Provider, groups: object) -> None:
    provider.claims = {} if groups is None else {"groups": groups}
    browser = Browser(console.url)
    answer = by_provider(browser)
    assert answer.status == 403
    assert f"oidc:ann (sub u1 at {provider.issuer}) is logged in at localhost" in answer.text
    assert "none of the groups that may use this console" in answer.text
    assert browser.get("/streams").headers["location"] == "/login"
    assert '"event": "login failed", "user": "oidc:"' in console.output()


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "x"}, {"aud": "other"}, {"aud": ["other"]}, {"iss": "http://localhost:1"},
        {"exp": int(time.time()) - 999}, {"azp": "other"}, "another key",
    ],
    ids=str,
)  # fmt: skip
def test_an_id_token_for_another_login_is_refused(console: Console, provider: Provider, claims: object) -> None:
    if isinstance(claims, dict):
        provider.claims = {"groups": ["ops"], **claims}
    else:
        provider.claims, provider.key = {"groups": ["ops"]}, RSAKey.generate_key(2048, {"kid": "k"})
    browser = Browser(console.url)
    answer = by_provider(browser)
    assert answer.status == 403
    assert "the login by localhost" in answer.text
    assert browser.get("/streams").headers["location"] == "/login"


def test_a_callback_that_no_browser_of_this_console_began_asks_the_provider_nothing(
    console: Console, provider: Provider
) -> None:
    provider.claims = {"groups": ["ops"]}
    provider.requests.clear()
    browser = Browser(console.url)
    for change in (
        lambda address: re.sub("state=[^&]*", "state=other", address), lambda _: "/oidc", lambda _: "/oidc?code=x",
        lambda _: "/oidc?error=access_denied&error_description=no%1b[31m", lambda _: "/oidc?state=&code=",
    ):  # fmt: skip
        answer = by_provider(browser, change)
        assert answer.status == 403
        assert "\x1b" not in answer.text
    there = browser.get("/oidc/login").headers["location"]
    state = dict(parse_qsl(urlsplit(there).query))["state"]
    assert Browser(console.url).get(f"/oidc?code=one-time&state={state}").status == 403  # another browser
    assert provider.requests == []
    assert by_provider(browser).status == 200


def test_failures_of_one_address_are_bounded(console: Console, provider: Provider) -> None:
    browser = Browser(console.url)
    answers = [by_provider(browser, address="10.9.9.9") for _ in range(PER_NAME + 1)]
    assert [answer.status for answer in answers] == [403] * PER_NAME + [429]
    assert int(answers[-1].headers["retry-after"]) <= 60
    provider.claims = {"groups": ["ops"]}
    assert by_provider(browser, address="10.9.9.9").status == 429
    assert by_provider(browser).status == 200


def test_users_with_one_preferred_name_are_told_apart(console: Console, provider: Provider) -> None:
    """Pages and the audit log have the subject and the issuer, and a preferred name cannot look like them."""
    for subject, preferred in (("7", "ann"), ("8", "ann"), ("9", "ann (sub 7 at x)"), ("10", "\x1b[31m"), ("11", None)):
        provider.claims = {"groups": ["ops"], "sub": subject, "preferred_username": preferred}
        browser = Browser(console.url)
        answer = by_provider(browser)
        assert answer.status == 200, answer.text
        assert f"(sub {subject} at {provider.issuer}) has the role write" in answer.text
        assert answer.text.count("(sub ") == 1
        assert f"(sub {subject} at {provider.issuer})" in browser.get("/").text
        assert f'(sub {subject} at {provider.issuer})", "address"' in console.output()
    for subject in ("", "x" * 256, 5, None):
        provider.claims = {"groups": ["ops"], "sub": subject}
        assert by_provider(Browser(console.url)).status == 403


def test_an_issuer_that_differs_by_a_slash_is_named_on_both_sides(
    provider: Provider, engine_server: Server, tmp_path: Path
) -> None:
    settings = write_settings(tmp_path / "oidc.toml", f"{provider.issuer}/")
    with running_console(engine_server.url, "--oidc", str(settings)) as console:
        answer = Browser(console.url).get("/oidc/login")
        assert answer.status == 502
        assert f"names itself &#39;{provider.issuer}&#39;" in answer.text
        assert f"has issuer &#39;{provider.issuer}/&#39;" in answer.text


def test_a_provider_that_is_away_is_not_asked_for_each_request(engine_server: Server, tmp_path: Path) -> None:
    """After a failure the next requests are refused at once, and the pause grows."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as away, contextlib.ExitStack() as stack:
        away.settimeout(0.1)
        stop = threading.Event()

        def hang_up() -> None:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    away.accept()[0].close()
                    asked.append(time.monotonic())

        thread = threading.Thread(target=hang_up)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        settings = write_settings(tmp_path / "oidc.toml", f"http://127.0.0.1:{away.getsockname()[1]}")
        with running_console(engine_server.url, "--oidc", str(settings)) as console:
            begun = time.monotonic()
            while time.monotonic() - begun < 5:
                answer = Browser(console.url).get("/oidc/login")
                assert answer.status == 502
                assert 1 <= int(answer.headers["retry-after"]) <= 8
    assert 2 <= len(asked) <= 4  # at 0, 1 and 3 seconds


def test_users_with_passwords_stay_beside_it(console: Console) -> None:
    browser = Browser(console.url)
    assert log_in(browser, "eve", "geheim") == 303
    assert "eve" in browser.get("/").text


def test_a_provider_that_is_away_is_named(engine_server: Server, tmp_path: Path) -> None:
    settings = write_settings(tmp_path / "oidc.toml", "http://127.0.0.1:9")
    with running_console(engine_server.url, "--oidc", str(settings)) as console:
        browser = Browser(console.url)
        assert browser.get("/streams").headers["location"] == "/login"
        assert 'name="password"' not in browser.get("/login").text
        answer = browser.get("/oidc/login")
        assert answer.status == 502
        assert "the login by 127.0.0.1:9 failed (ConnectError" in answer.text
        assert SECRET not in console.output()
    with running_console(engine_server.url) as console:
        assert Browser(console.url).get("/oidc/login").status == 404


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('other = "x"', "other"), ("scope = 5", "a text"), ("x", "cannot be read"),
        ('view = "staff"', "cannot be read"), ('claim = "x"', "cannot be read"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        Settings.read(str(write_settings(tmp_path / "oidc.toml", "https://login.example", more)))
    assert SECRET not in str(error.value)


def test_the_file_is_private_and_the_provider_is_reached_by_https(tmp_path: Path, engine_server: Server) -> None:
    path = write_settings(tmp_path / "oidc.toml", "http://login.example")
    with pytest.raises(ConfigError, match="not an https URL"):
        Settings.read(str(path))
    path = write_settings(path, "https://login.example")
    assert SECRET not in repr(Settings.read(str(path)))
    path.chmod(0o644)
    ran = CliRunner().invoke(main, ["console", "--oidc", str(path), "--url", engine_server.url])
    assert (ran.exit_code, "chmod 600" in ran.output) == (1, True)
    path.write_text('issuer = "https://a"\nclient_id = "b"\nclaim = "c"\n')
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="set one of the lists"):
        Settings.read(str(path))


def test_a_user_of_the_file_can_have_the_role_view(engine_server: Server, tmp_path: Path) -> None:
    path = tmp_path / "users"
    for words in (["--add-user", "ann", "--role", "view"], ["--add-user", "bob"]):
        assert CliRunner().invoke(main, ["console", "--users", str(path), *words], input="pw\n").exit_code == 0
    with running_console(engine_server.url, "--write", "--users", str(path)) as console:
        for name in ("ann", "bob"):
            browser = Browser(console.url)
            assert log_in(browser, name, "pw") == 303
            planned = browser.post("/plan", {"action": "add", "names": "s", "new.name": "n", "new.value": "1"}).text
            assert ('action="/changes"' in planned) == (name == "bob")
    path.write_text(path.read_text().replace(":view", ":owner"))
    with pytest.raises(ConfigError, match="role of ann is unknown"):
        Users.read(str(path))
