"""A browser without a window: requests to the console with cookies, and forms as a page has them."""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit


@dataclass
class Answer:
    """status, headers (names in lower case), and text of an answer."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Form:
    """A form of a page: where it is sent, and the values that its fields have."""

    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Browser:
    """Keeps cookies. url: of the console, without a slash at its end."""

    url: str
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answer:
        """Return a page."""
        return self._send("GET", path, None, headers)

    def post(self, path: str, fields: list[tuple[str, str]] | dict[str, str], **headers: str) -> Answer:
        """Send a form as a page of the console does."""
        pairs = list(fields.items()) if isinstance(fields, dict) else fields
        body = urlencode(pairs, errors="surrogateescape")
        usual = {"content-type": "application/x-www-form-urlencoded", "origin": self.url}
        return self._send(
            "POST", path, body, usual | {name.replace("_", "-"): value for name, value in headers.items()}
        )

    def upload(self, path: str, name: str, data: bytes, **headers: str) -> Answer:
        """Send a form with one file as Chromium does."""
        head = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: text/plain\r\n\r\n'
        body = b"--xyz\r\n" + head.encode() + data + b"\r\n--xyz--\r\n"
        usual = {"content-type": "multipart/form-data; boundary=xyz", "origin": self.url}
        return self._send("POST", path, body, usual | headers)

    def _send(self, method: str, path: str, body: str | bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            sent = {"accept": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}
            if self.cookies:
                sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            for header in response.headers.get_all("set-cookie") or ():
                name, _, value = header.split(";")[0].partition("=")
                self.cookies[name] = value
            return Answer(response.status, received, response.read().decode())
        finally:
            connection.close()


def forms(page: str) -> list[Form]:
    """Return the forms of a page."""
    parser = _Forms()
    parser.feed(page)
    return parser.forms


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._is_open = False
        self._area: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if tag == "form":
            self.forms.append(Form(values.get("action", "")))
            self._is_open = True
        elif self._is_open and tag == "textarea":
            self._area = values["name"]
            self.forms[-1].fields.append((self._area, ""))
        elif self._is_open and tag == "input" and values.get("type") != "checkbox" and "name" in values:
            self.forms[-1].fields.append((values["name"], values.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            name, text = self.forms[-1].fields.pop()
            self.forms[-1].fields.append((name, text + data))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._is_open = False
        elif tag == "textarea" and self._area is not None:
            name, text = self.forms[-1].fields.pop()
            self.forms[-1].fields.append((name, text.removeprefix("\n")))
            self._area = None


def form_to(page: str, address: str, **values: str) -> list[tuple[str, str]]:
    """Return the fields of the form with this address and these values."""
    for form in forms(page):
        if form.action == address and all((name, value) in form.fields for name, value in values.items()):
            return form.fields
    raise AssertionError(f"no form to {address} with {values} in {page}")


def replaced(fields: list[tuple[str, str]], **values: str) -> list[tuple[str, str]]:
    """Return the fields with other values; a field that the form lacks is added."""
    names = {name for name, _ in fields}
    changed = [(name, values.get(name, value)) for name, value in fields]
    return changed + [(name, value) for name, value in values.items() if name not in names]


def wait_for_change(browser: Browser, number: int) -> str:
    """Return the page of a change that has ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        page = browser.get(f"/changes/{number}").text
        if "Running" not in page:
            return page
        time.sleep(0.02)
    raise AssertionError("the change does not end")
