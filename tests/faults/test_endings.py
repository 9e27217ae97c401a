"""A run that reads what is there and ends leaves nothing pending."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos import endings
from tests.chaos.scene import Outcome, Scene

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("run", [endings.once, endings.available_now])
def test_the_end_of_a_run_leaves_nothing_pending(scene: Scene, seed: int, run: Callable[[Scene], Outcome]) -> None:
    outcome = run(scene)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
