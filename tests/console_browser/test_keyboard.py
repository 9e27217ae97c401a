"""With the keyboard alone: a user finds a dead letter, corrects a field of it, and sends it back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.console.normal import DEAD, GROUP, STREAM, NormalData, write_normal
from tests.console.process import Console, running_console
from tests.console_browser.conftest import DISPLAYS, OpenPage
from tests.console_browser.watched_page import Display, WatchedPage
from tools.servers.server import Server

DISPLAY = pytest.mark.parametrize("display", [DISPLAYS[0], DISPLAYS[3]], ids=str)
_MOST_TABS = 400
# What has the focus: its text, its place, and whether an outline shows it.
_FOCUS = """() => {
    const element = document.activeElement, box = element.getBoundingClientRect(), style = getComputedStyle(element);
    return {
        name: (element.getAttribute('aria-label') || element.labels?.[0]?.textContent || element.textContent).trim(),
        tag: element.tagName, top: box.top + scrollY, left: box.left,
        isVisible: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
        isInWindow: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    };
}"""


@pytest.fixture
def filled(server: Server) -> NormalData:
    with server.client() as client:
        return write_normal(client)


@pytest.fixture
def console(server: Server, filled: NormalData) -> Iterator[Console]:
    with running_console(server.url, "--write") as console:
        yield console


def tab_to(page: WatchedPage, name: str, tag: str) -> None:
    """Press Tab until an element whose name matches has the focus. Elements on the way show that they have it."""
    for _ in range(_MOST_TABS):
        page.page.keyboard.press("Tab")
        focus = page.page.evaluate(_FOCUS)
        if focus["tag"] == "BODY":
            continue
        assert focus["isVisible"], f"nothing shows the focus of {focus}"
        assert focus["isInWindow"], f"the focus is outside of the window: {focus}"
        if re.search(name, focus["name"]) and focus["tag"] == tag:
            return
    raise AssertionError(f"{_MOST_TABS} times Tab do not lead to {name}")


def press(page: WatchedPage, key: str, address: str) -> None:
    page.page.keyboard.press(key)
    page.page.wait_for_url(address)
    page.check()


@DISPLAY
def test_a_dead_letter_is_corrected_and_sent_back(
    console: Console, server: Server, filled: NormalData, open_page: OpenPage, display: Display
) -> None:
    letter = filled.letters["decode: amount does not fit DOUBLE"][0]
    page = open_page(console, "/", display)
    tab_to(page, "^Dead letters$", "A")
    press(page, "Enter", "**/dead")
    tab_to(page, "decode: amount does not fit DOUBLE", "A")
    press(page, "Enter", "**/dead/stream?*")
    tab_to(page, letter, "A")
    press(page, "Enter", "**/dead/letter?*")
    tab_to(page, "Value of amount", "TEXTAREA")
    page.page.keyboard.press("Control+A")
    page.page.keyboard.type("12.50")
    page.screenshot("keyboard-edited")
    tab_to(page, "sending back", "BUTTON")
    press(page, "Enter", "**/plan")
    assert "--set amount=12.50" in page.page.locator(".command").inner_text()
    with server.client() as client:
        assert client.xlen(STREAM) == 600, "the dry run changes nothing"
    tab_to(page, "^Send back", "BUTTON")
    press(page, "Enter", "**/changes/1")
    page.page.get_by_text("Done").wait_for()
    page.check()

    with server.client() as client:
        [(_, fields)] = client.xrevrange(STREAM, count=1)
        redriven = fields.pop(b"dl.redriven")
        assert fields == {b"order": b"000001", b"customer": b"bob", b"amount": b"12.50"}
        assert redriven.endswith(f"{DEAD}/{letter}".encode())
        assert client.xlen(DEAD) == 299
        assert client.xrange(DEAD, letter, letter) == []
        assert client.xlen(STREAM) == 601
    audit = [line for line in console.output().splitlines() if line.startswith("{")]
    assert len(audit) == 2  # its begin and its end
    assert all('"user": "local"' in line and '"--set", "amount=12.50"' in line for line in audit)
    assert ['"moved": 1' in line for line in audit] == [False, True]


def test_the_first_stop_skips_the_navigation(console: Console, open_page: OpenPage) -> None:
    page = open_page(console, "/streams")
    page.page.keyboard.press("Tab")
    assert page.page.evaluate(_FOCUS)["name"] == "Skip to the content"
    assert page.page.evaluate(_FOCUS)["isInWindow"]
    page.screenshot("keyboard-skip", whole=False)
    page.page.keyboard.press("Enter")
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("() => document.activeElement.closest('main') !== null")
    assert page.page.evaluate(_FOCUS)["name"].startswith("Name")


@pytest.mark.parametrize(
    "path", ["/", "/streams", f"/group?stream={STREAM}&group={GROUP}", f"/dead/stream?name={DEAD}"]
)
def test_the_focus_goes_from_the_top_to_the_bottom(console: Console, open_page: OpenPage, path: str) -> None:
    """A later stop is below the one before, or to its right. The first stop, which skips the navigation, is apart."""
    page = open_page(console, path)
    stops = []
    for _ in range(_MOST_TABS):
        page.page.keyboard.press("Tab")
        focus = page.page.evaluate(_FOCUS)
        if focus["tag"] == "BODY":
            break
        assert focus["isVisible"], focus
        stops.append(focus)
    back = [
        (before, stop)
        for before, stop in pairwise(stops[1:])
        if stop["top"] + 40 < before["top"] and stop["left"] <= before["left"]
    ]
    assert not back
    assert 5 < len(stops) < _MOST_TABS
