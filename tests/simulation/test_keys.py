"""Each key that the product writes in plans is a row of docs/reference/keys.md: its form, and its type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.legs.identity.documented_rights import documented
from tools.simulation.histories import writes_of
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.soak import soak
from tools.simulation.world import World

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "keys.md"
# By the first letters of a command: the type of its key. DEL, PEXPIRE and their like take any.
TYPES = {"SET": "string", "APPEND": "string", "INCRBY": "string", "H": "hash", "SADD": "set", "X": "stream"}
# Kinds that plans write again and again. Others, such as `pace`, have tests of their own.
OFTEN = {
    "attempts", "begun", "committed", "first", "lease", "notes", "origins", "redrive", "retry", "returned", "runs",
    "session", "sink", "told", "tried",
}  # fmt: skip


def rows_of(page: str) -> Iterator[tuple[re.Pattern[str], str]]:
    """Yield the form and the type of the keys of each row. A name in braces is the stream's; `:claims` has the form of
    the key before it."""
    for cell, kind in re.findall(r"^\| (`rstream:[^|]*) \| (\w+) \|", page, re.MULTILINE):
        before = ""
        for span in re.findall(r"`(:?[^`]+)`", cell):
            before = before.rpartition(":")[0] + span if span.startswith(":") else span
            parts = re.split(r"(\{[^}]*\}|<[^>]*>)", before)
            forms = {"{": r"\{[^}]+\}(?::[^:]+)*?", "<": r"[^:{}]+"}
            yield re.compile("".join(forms.get(part[:1], re.escape(part)) for part in parts)), kind


@pytest.fixture(scope="module")
def written() -> set[tuple[str, str]]:
    """Keys of the product with their types, as the commands of some plans write them."""
    found = set()
    tick = World.tick

    def noting_tick(self: World, connection: object = None, data: bytes | memoryview | None = None) -> None:
        for name, key, *_ in writes_of(data) if data is not None else ():
            kind = next((kind for begin, kind in TYPES.items() if name.decode().startswith(begin)), "")
            if key.startswith(b"rstream:") and kind:
                found.add((key.decode(), kind))
        tick(self, connection, data)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "tick", noting_tick)
        for _ in soak(ProcessServer(), range(104, 118), additions=["drawn"]):
            pass
    return found


def unknown(written: set[tuple[str, str]], page: str) -> set[tuple[str, str]]:
    rows = list(rows_of(page))
    return {(key, kind) for key, kind in written if not any(form.fullmatch(key) and kind == one for form, one in rows)}


def test_the_page_has_the_form_and_the_type_of_each_key(written: set[tuple[str, str]]) -> None:
    assert unknown(written, PAGE.read_text(encoding="utf-8")) == set()
    assert OFTEN - {key.split(":")[1] for key, _ in written} == set()


def test_a_role_of_the_page_of_rights_may_write_each_key(written: set[tuple[str, str]]) -> None:
    roles = documented()
    words = [word for role in ("reader", "writer", "redrive") for word in roles[role] if word.startswith("~rstream:")]
    allowed = []
    for pattern in words:
        names = re.sub(r"\{[^}]+\}", "{*}", pattern[1:]).replace("billing", "*")
        allowed.append(re.compile(re.escape(names).replace(r"\*", ".*").replace(r"\[\^\{\].*", r"[^{].*")))
    assert {key for key, _ in written if not any(one.fullmatch(key) for one in allowed)} == set()
    assert not any(one.fullmatch("rstream:gone:{s}") for one in allowed)


@pytest.mark.parametrize(("words", "planted"), [
    ("`rstream:sink:<query>` | hash", "`rstream:sink:<query>` | string"),
    ("`rstream:begun:<group>:<consumer>`", "`rstream:begun:{orders}:<group>:<consumer>`"),
])  # fmt: skip
def test_a_wrong_form_or_type_is_found(written: set[tuple[str, str]], words: str, planted: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert words in page
    assert unknown(written, page.replace(words, planted))
