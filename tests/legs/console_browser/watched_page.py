"""A page in the browser, and all that the browser complains of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from tests.operations.console.hostile import MARKER

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Dialog, Page, Request, Response

SECONDS = 30.0
IMPACTS = ("critical", "serious", "moderate")
# What a hostile text could have become: elements and attributes that the console's templates do not have.
_FOREIGN = """() => [...document.querySelectorAll('*')].filter(element =>
    ['IFRAME', 'OBJECT', 'EMBED', 'BASE'].includes(element.tagName) ||
    (element.tagName === 'SCRIPT' && !new URL(element.src || 'x:').pathname.startsWith('/static/')) ||
    (element.tagName === 'IMG' && !new URL(element.src || 'x:').pathname.startsWith('/static/')) ||
    element.getAttribute('style') ||
    element.getAttributeNames().some(name => name.startsWith('on')) ||
    ['href', 'src', 'action', 'formaction'].some(name => /^\\s*(javascript|data|vbscript):/i.test(
        element.getAttribute(name) || ''))
).map(element => element.outerHTML.slice(0, 200))"""
_OUTSIDE = """() => {
    const scrolls = element => element && (
        ['auto', 'scroll', 'hidden'].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
    return [...document.querySelectorAll('body *')]
        .filter(element => element.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
        .filter(element => !scrolls(element.parentElement))
        .map(element => element.outerHTML.slice(0, 150));
}"""


@dataclass(frozen=True)
class Display:
    """scheme: `light` or `dark`; width: CSS pixels."""

    scheme: str
    width: int

    def __str__(self) -> str:
        return f"{self.scheme}-{self.width}"

    def context(self) -> dict[str, Any]:
        """Return the options of the browser's context."""
        height = 900 if self.width > 600 else 780
        return {"color_scheme": self.scheme, "viewport": {"width": self.width, "height": height}, "locale": "en-US"}


@dataclass
class WatchedPage:
    """page: Playwright's; folder: for screenshots, None if there are to be none; name: of the
    display, for their files.

    complaints: errors that the browser logs (a violation of the Content-Security-Policy is one), exceptions of scripts,
    dialogs, requests to other hosts, and answers of 400 and above.
    """

    page: Page
    url: str
    folder: Path | None
    name: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(SECONDS * 1000)
        self.page.on("console", self._on_message)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("dialog", self._on_dialog)
        self.page.on("popup", lambda page: self.complaints.append(f"popup: {page.url}"))
        self.page.on("request", self._on_request)
        self.page.on("response", self._on_response)

    def open(self, path: str, **parameters: str) -> Response:
        """Open a page of the console. Texts of parameters: bytes that are not UTF-8 are surrogate escapes."""
        response = self.page.goto(self.url + address(path, **parameters), wait_until="load")
        assert response is not None
        return response

    def expect(self, pattern: str) -> None:
        """Remove complaints that match; there must be one."""
        rest = [complaint for complaint in self.complaints if not re.search(pattern, complaint)]
        assert len(rest) < len(self.complaints), f"no complaint about {pattern}: {self.complaints}"
        self.complaints[:] = rest

    def findings(self) -> list[str]:
        """Return the complaints, and what a hostile text has done to the page that is open."""
        foreign: list[str] = self.page.evaluate(_FOREIGN)
        ran = ["a hostile script ran"] if self.page.evaluate(f"() => '{MARKER}' in window") else []
        return [*self.complaints, *foreign, *ran]

    def check(self) -> None:
        """Fail if there are findings. It is called for each page that a test opens: only the open one is searched."""
        findings = self.findings()
        assert not findings, "\n".join([self.page.url, *findings])

    def close(self) -> None:
        """Check the page, and close it: it no longer complains of a console that ends."""
        if not self.page.is_closed():
            self.check()
            self.page.close()

    def check_layout(self) -> None:
        """Fail if the page is wider than its window. A table may scroll within its box."""
        width, inner = self.page.evaluate(
            "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert width <= inner, f"{self.page.url}: {width} px in {inner} px: {self.page.evaluate(_OUTSIDE)[:8]}"

    def check_accessibility(self) -> None:
        """Fail if axe-core finds a violation."""
        self.page.evaluate(_axe())
        result = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        violations = [
            f"{violation['impact']} {violation['id']}: {violation['help']}: {node['html'][:160]} "
            f"{node['any'][0]['message'] if node['any'] else ''}"
            for violation in result["violations"]
            if violation["impact"] in IMPACTS
            for node in violation["nodes"][:5]
        ]
        assert violations == [], self.page.url

    def settle(self) -> None:
        """Wait until the page has been updated without a reload, if it does that."""
        if self.page.locator("main [data-live]").count():
            with self.page.expect_response(lambda response: "x-live" in response.request.headers):
                self.page.wait_for_timeout(0)

    def screenshot(self, name: str, whole: bool = True) -> None:
        """Store a picture of the page, if a folder is given. whole: also what the window does not show."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=self.folder / f"{name}-{self.name}.png", full_page=whole)

    def _on_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} {message.location.get('url', '')}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self.url + "/"):
            self.complaints.append(f"request to {urlsplit(request.url).netloc or request.url[:100]}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"answer {response.status} of {response.url[:200]}")


def address(path: str, **parameters: str) -> str:
    """Return a path with parameters."""
    return f"{path}?{urlencode(parameters, errors='surrogateescape')}" if parameters else path


@cache
def _axe() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
