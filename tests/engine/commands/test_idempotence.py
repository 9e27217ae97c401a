"""Messages of idempotent adds, in an engine whose Python has the base only."""

from __future__ import annotations

import sys

import pytest

from tests.engine.state import Inside


def test_without_xxhash_idmpauto_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream gets no entry and no message. An add that names its message needs no hash."""
    monkeypatch.setitem(sys.modules, "xxhash", None)
    inside = Inside()
    inside.call("XADD", "s", "1-1", "a", "1")
    refused = inside.call("XADD", "s", "IDMPAUTO", "p", "*", "a", "1")
    assert str(refused) == "ERR XADD IDMPAUTO needs xxhash, and this Python has none: pip install xxhash"
    assert inside.call("XLEN", "s") == 1
    added = inside.call("XADD", "s", "IDMP", "p", "m", "*", "a", "1")
    assert inside.call("XADD", "s", "IDMP", "p", "m", "*", "a", "1") == added
