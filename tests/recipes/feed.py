"""Entries for four recipes, and what they come to: counted here, read once."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import redis

from tests.recipes.conftest import recipe_of

HOUR = 3_600_000  # ms
BEGIN = 1_767_225_600_000  # 2026-01-01
# What each query reads.
READ = {
    "totals": ["purchases"],
    "windows": ["north", "south"],
    "hashes": ["moves"],
    "delta": ["sales"],
}


class Feed:
    """Entries for all four queries, and what they come to.

    apart: ms between two readings. Where a query runs meanwhile a round must be shorter than what its watermark waits
    for: it may be given a round of one stream alone.
    """

    def __init__(self, client: redis.Redis, apart: int = 12_000) -> None:
        self._client = client
        self._apart = apart
        self.orders: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.state: dict[str, dict[str, str]] = {}
        self.sales: list[tuple[str, Decimal]] = []
        self.windows: dict[tuple[int, str], tuple[int, Decimal]] = {}
        self._n = 0

    def round(self) -> None:
        """Fifty entries for each query."""
        with self._client.pipeline(transaction=False) as sent:
            for n in range(self._n, self._n + 50):
                customer, amount = f"c{n * n % 7}", Decimal(n) + Decimal("0.25")
                order = {"customer": customer, "amount": str(amount), "place": f"p{n}"}
                for stream in ("example:purchases", "example:sales", "example:moves"):
                    sent.xadd(stream, order)
                self.orders[customer] += 1
                self.totals[customer] += amount  # type: ignore[assignment]
                self.state[customer] = order
                self.sales.append((customer, amount))
                self._reading(sent, BEGIN + n * self._apart, f"s{n % 3}", Decimal(n % 9), ("north", "south")[n % 2])
            sent.execute()
        self._n += 50

    def close_the_windows(self) -> None:
        """A reading much later than all others, which itself is in no closed window."""
        self._client.xadd("example:north", {"sensor": "last", "degrees": "0"}, id=f"{BEGIN + 1000 * HOUR}-0")

    def _reading(self, sent: redis.client.Pipeline, at: int, sensor: str, degrees: Decimal, where: str) -> None:
        sent.xadd(f"example:{where}", {"sensor": sensor, "degrees": str(degrees)}, id=f"{at}-0")
        count, total = self.windows.get((at // HOUR, sensor), (0, Decimal(0)))
        self.windows[at // HOUR, sensor] = (count + 1, total + degrees)

    def check(self, query: str, folder: Path) -> None:
        """Whether the query has made of the entries what they come to, and left none pending."""
        {"totals": self._totals, "windows": self._windows, "hashes": self._hashes, "delta": self._delta}[query](folder)
        for stream in READ[query]:
            for group in self._client.xinfo_groups(f"example:{stream}"):
                assert (group["pending"], group["lag"]) == (0, 0)

    def _totals(self, _folder: Path) -> None:
        last: dict[str, tuple[int, Decimal]] = {}
        for _, entry in self._client.xrange("example:totals"):
            now = (int(entry["orders"]), Decimal(entry["total"]))
            assert now > last.get(entry["customer"], (0, Decimal(0))), "each change once, and in order"
            last[entry["customer"]] = now
        assert last == {customer: (self.orders[customer], self.totals[customer]) for customer in self.orders}

    def _windows(self, _folder: Path) -> None:
        written = [one for _, one in self._client.xrange("example:hours")]
        hours = {
            (int(datetime.fromisoformat(one["hour"]).timestamp()) * 1000 // HOUR, one["sensor"]): one for one in written
        }
        assert len(hours) == len(written), "each window once"
        assert {at: (int(one["readings"]), Decimal(one["degrees"])) for at, one in hours.items()} == self.windows

    def _hashes(self, _folder: Path) -> None:
        key = recipe_of("latest_in_hashes").key
        assert {customer: self._client.hgetall(key(customer)) for customer in self.state} == self.state

    def _delta(self, folder: Path) -> None:
        sold = recipe_of("delta_table").rows_in(str(folder / "table"))
        assert sorted((row["customer"], row["amount"]) for row in sold) == sorted(self.sales)
