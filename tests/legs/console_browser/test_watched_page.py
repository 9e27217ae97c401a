"""The checks of these tests find what they search for: pages with one defect each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.legs.console_browser.watched_page import WatchedPage
from tests.operations.console.hostile import HOST, MARKER

if TYPE_CHECKING:
    from playwright.sync_api import Browser

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
SOUND = (
    '<!doctype html><html lang="en"><title>t</title><link rel="icon" href="/static/i.png"><main><h1>Sound</h1>{}</main>'
)
LAYOUT = f"<pre>{'w' * 900}</pre>"
CONTRAST = '<p><font color="#cccccc">pale</font></p>'
LABEL = "<input>"
DEFECTS = {
    "an inline script": (f"<script>window.{MARKER}=1</script>", "Content Security Policy"),
    "an inline style": ('<p style="color: red">x</p>', "Content Security Policy"),
    "another host": (f'<img alt="x" src="//{HOST}/x">', f"request to {HOST}"),
    "a missing file": ('<script src="/static/missing.js"></script>', "answer 404"),
    "a handler": ("<p onclick=x()>x</p>", "onclick"),
    "a link that is a script": ('<a href="javascript:alert(1)">x</a>', "javascript:"),
    "an exception": ('<script src="/static/error.js"></script>', "exception: oops"),
    "a dialog": ('<script src="/static/alert.js"></script>', "dialog: 1"),
    "the marker": ('<script src="/static/marker.js"></script>', "a hostile script ran"),
}
FILES = {
    "/static/i.png": "",
    "/static/error.js": "throw 'oops'",
    "/static/alert.js": "alert(1)",
    "/static/marker.js": f"window.{MARKER} = 1",
}


@pytest.fixture
def page(browser: Browser) -> Iterator[WatchedPage]:
    """A page of a site whose address names the body of the page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path
            body = SOUND.format(bodies[path]) if path in bodies else FILES.get(path)
            self.send_response(404 if body is None else 200)
            kind = "html; charset=utf-8" if path in bodies else "javascript" if path.endswith("js") else "plain"
            self.send_header("content-type", f"text/{kind}")
            self.send_header("content-security-policy", POLICY)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    defects = {f"/{name.replace(' ', '-')}": body for name, (body, _) in DEFECTS.items()}
    bodies = {"/": "", "/layout": LAYOUT, "/contrast": CONTRAST, "/label": LABEL, **defects}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context = browser.new_context(viewport={"width": 360, "height": 780})
    yield WatchedPage(context.new_page(), f"http://127.0.0.1:{server.server_port}", None, "")
    context.close()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_fails_the_test(page: WatchedPage, defect: str) -> None:
    page.open(f"/{defect.replace(' ', '-')}")
    with pytest.raises(AssertionError, match=DEFECTS[defect][1]):
        page.check()


def test_a_page_that_is_too_wide(page: WatchedPage) -> None:
    page.open("/layout")
    page.check()
    with pytest.raises(AssertionError, match="px in 360 px"):
        page.check_layout()


@pytest.mark.parametrize(("path", "rule"), [("/contrast", "color-contrast"), ("/label", "label")])
def test_a_page_that_is_not_accessible(page: WatchedPage, path: str, rule: str) -> None:
    page.open(path)
    page.check()
    with pytest.raises(AssertionError, match=f"{rule}:"):
        page.check_accessibility()


def test_a_sound_page(page: WatchedPage) -> None:
    page.open("/")
    page.check_layout()
    page.check_accessibility()
    page.check()
