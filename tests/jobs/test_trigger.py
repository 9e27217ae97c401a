"""How often a job's query looks for entries."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from spark_streams.errors import ConfigError
from spark_streams.jobs.micro_batches import trigger_of


def trigger_from(text: str | None) -> Mapping[str, Any]:
    job: Any = SimpleNamespace(get=lambda key, default=None: default if text is None else text)
    return trigger_of(job)


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        (None, {"availableNow": True}),
        ("available-now", {"availableNow": True}),
        ("10 seconds", {"processingTime": "10 seconds"}),
        ("5s", {"processingTime": "5000 milliseconds"}),
        ("500ms", {"processingTime": "500 milliseconds"}),
        ("2 m", {"processingTime": "120000 milliseconds"}),
    ],
)
def test_a_trigger_is_a_word_or_a_length_of_time(text: str | None, trigger: dict[str, Any]) -> None:
    assert trigger_from(text) == trigger


@pytest.mark.parametrize("text", ["often", "once", "5", "0s", "-5s", "5 fortnights"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match='must be "available-now" or an interval such as "10s", not '):
        trigger_from(text)
