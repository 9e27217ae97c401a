"""A soak finds what grows."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tools.servers.server import skip_without_redis
from tools.soak import report
from tools.soak.faults import OneServer
from tools.soak.job_process import STREAM, Producer
from tools.soak.report import WARM, Sample, fit
from tools.waiting import until

MINUTES = 120


def noisy(level: float, per_hour: float, seed: int) -> list[tuple[float, float]]:
    """Points of two hours, one a minute."""
    noise = random.Random(seed)
    return [(60.0 * m, level + per_hour * m / 60 + noise.gauss(0, level / 50)) for m in range(MINUTES)]


def test_noise_and_a_saw_are_flat() -> None:
    saw = [(60.0 * m, 100.0 + m % 10) for m in range(MINUTES)]
    slopes = [fit({0: points}) for points in (saw, *(noisy(500, 0, seed) for seed in range(20)))]
    assert all(slope is not None and slope.is_flat for slope in slopes)


def test_growth_of_a_tenth_in_an_hour_is_not_flat() -> None:
    slopes = [fit({0: noisy(500, 50, seed)}) for seed in range(20)]
    assert not any(slope is None or slope.is_flat for slope in slopes)


def test_a_process_that_starts_again_does_not_hide_its_growth() -> None:
    lives = {n: [(60.0 * m, 200 + 2.0 * (m % 30)) for m in range(30 * n, 30 * n + 30)] for n in range(4)}
    slope = fit(lives)
    assert slope is not None
    assert slope.per_hour == pytest.approx(120)
    assert not slope.is_flat


def test_the_first_minutes_of_a_life_are_left_out() -> None:
    samples = [
        Sample(60.0 * m, {"etl: jvm memory MB": min(300.0, 50.0 * (m % 30))}, {"etl": (m // 30, 60.0 * (m % 30))})
        for m in range(MINUTES)
    ]
    assert min(age for _, age in (sample.lives["etl"] for sample in samples)) < WARM
    assert report.not_flat(report.slopes(samples)) == []


def test_the_page_escapes_and_draws_each_figure() -> None:
    samples = [Sample(60.0 * m, {"etl: jvm memory MB": 300.0, "server: keys": 4.0}, {}) for m in range(3)]
    page = report.page(samples, "Soak <1>", "lost 0", 1_800_000_000.0)
    assert "Soak &lt;1&gt;" in page
    assert "&" not in page.partition("<style>")[2].partition("</style>")[0]
    assert "etl: jvm memory MB" in page
    assert page.count("<path d=") == 2


def test_the_producer_adds_each_number_once_while_the_server_is_killed_and_refuses_writes() -> None:
    skip_without_redis()
    with OneServer() as server, server.server.client() as client:
        producer = Producer(server.url, rate=2000, seed=1)
        for _ in range(3):
            time.sleep(0.3)
            server.restart(away=0.2)
            client.config_set("maxmemory", 1)
            client.client_kill_filter(_type="normal", skipme=True)
            time.sleep(0.3)
            client.config_set("maxmemory", 0)
        time.sleep(0.5)
        producer.stop()
        entries: Any = client.xrange(STREAM)
        assert [int(fields[b"number"]) for _, fields in entries] == list(range(producer.added))
        assert server.starts == 4
        unfit = sum(fields[b"amount"] == b"unknown" for _, fields in entries)
        assert unfit == producer.unfit() > 0


def test_a_soak_that_fails_does_not_wait_for_its_producer() -> None:
    skip_without_redis()
    with OneServer() as server:
        with pytest.raises(KeyboardInterrupt), Producer(server.url, rate=100, seed=1) as producer:
            raise KeyboardInterrupt
        until(lambda: producer.has_ended, "the producer goes on")
