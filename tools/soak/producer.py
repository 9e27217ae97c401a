"""The producer of a soak: entries with consecutive numbers at a fixed rate, some of which do not fit their columns."""

from __future__ import annotations

import random
import threading
import time

import redis

from tools.soak.configs import STREAM

UNFIT = 200  # one entry in so many has an amount that is no number
_NOTE = "n" * 100


class Producer:
    """Adds entries in a thread until it is stopped. added: numbers 0 … added−1 are in the stream."""

    def __init__(self, url: str, rate: int, seed: int) -> None:
        """Start it. rate: entries per second."""
        self.added = self.unfit = 0
        self._url, self._rate, self._random = url, rate, random.Random(seed)
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended it, if one did."""
        if self._error is not None:
            raise RuntimeError("the producer ended") from self._error

    def stop(self) -> None:
        """Stop it, after the entries that it is adding."""
        self._stopped.set()
        self._thread.join()
        self.check()

    def _run(self) -> None:
        try:
            with redis.Redis.from_url(self._url) as client:
                began = time.monotonic()
                while not self._stopped.wait(0.1):
                    self._add(client, round((time.monotonic() - began) * self._rate) - self.added)
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._error = error

    def _add(self, client: redis.Redis, count: int) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for number in range(self.added, self.added + count):
                is_unfit = self._random.randrange(UNFIT) == 0
                self.unfit += is_unfit
                amount = "unknown" if is_unfit else f"{self._random.randrange(100_000) / 100:.2f}"
                pipeline.xadd(
                    STREAM, {"number": number, "amount": amount, "customer": f"c{number % 997}", "note": _NOTE}
                )
            pipeline.execute()
        self.added += count
