"""How often a job's query looks for entries."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.parts.query import check_target_time, trigger_of


def job_with(text: str | None) -> Any:
    return SimpleNamespace(get=lambda key, default=None: default if text is None else text)


def trigger_from(text: str | None) -> Mapping[str, Any]:
    return trigger_of(job_with(text))


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


@pytest.mark.parametrize("text", [None, "1ms", "1s", "1 second", "0 seconds", "900 MILLISECONDS"])
def test_a_short_interval_is_not_in_the_way_of_the_time_of_a_batch(text: str | None) -> None:
    check_target_time(job_with(text), 10_000)


@pytest.mark.parametrize("text", ["1001ms", "10s", "2 Seconds", "1 minute", "1 HOURS"])
def test_a_pause_that_would_count_as_time_of_a_batch_is_refused(text: str) -> None:
    check_target_time(job_with(text), None)
    with pytest.raises(ConfigError, match=r"is more than a tenth of source.targetBatchTime \(10000 ms\).*trigger = "):
        check_target_time(job_with(text), 10_000)


def test_an_interval_that_is_none_is_refused_as_ever() -> None:
    with pytest.raises(ConfigError, match="must be"):
        check_target_time(job_with("often"), 10_000)
