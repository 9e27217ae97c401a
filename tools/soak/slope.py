"""The slope of a figure over a soak, and whether it is flat.

A figure of a process begins anew with each of its lives. One slope is fitted to all lives together, each with a level
of its own; samples of the first minutes of a life are left out, because a process grows until it is warm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WARM = 600.0  # seconds of a life that are left out
LARGEST = 0.05  # growth in an hour, as a share of the mean, that still counts as flat …
_SURE = 3.0  # … or a slope below so many of its standard errors


@dataclass(frozen=True)
class Slope:
    """The fitted line of a figure. mean: of all samples; per_hour: its growth; error: its standard error."""

    samples: int
    mean: float
    per_hour: float
    error: float

    @property
    def is_flat(self) -> bool:
        """Whether it grows by less than LARGEST of its mean in an hour, or less than the samples can tell."""
        return self.per_hour <= max(LARGEST * abs(self.mean), _SURE * self.error)


def fit(lives: Mapping[int, Sequence[tuple[float, float]]]) -> Slope | None:
    """Return the line through all lives. lives: number of a life → (seconds, value). None: too few samples."""
    times, values, levels = [], [], 0
    for points in lives.values():
        if len(points) < 2:
            continue
        levels += 1
        place, value = np.array(points, dtype=np.float64).T
        times.append(place - place.mean())
        values.append((value - value.mean(), value))
    if not times:
        return None
    x = np.concatenate(times) / 3600
    y = np.concatenate([centred for centred, _ in values])
    spread = float(x @ x)
    free = len(x) - levels - 1
    if free < 1 or spread == 0:
        return None
    per_hour = float(x @ y) / spread
    rest = y - per_hour * x
    # Samples that follow one another are not independent: a step of the figure lasts for several of them.
    dependence = _dependence(rest)
    error = float(np.sqrt(rest @ rest / free / spread * dependence))
    mean = float(np.concatenate([raw for _, raw in values]).mean())
    return Slope(len(x), mean, per_hour, error)


def _dependence(rest: np.ndarray) -> float:
    """Return the factor of the variance of a slope for neighbours with the correlation r: (1 + r) / (1 − r)."""
    power = float(rest @ rest)
    if power == 0:
        return 1.0
    r = min(0.95, max(0.0, float(rest[1:] @ rest[:-1]) / power))
    return (1 + r) / (1 - r)
