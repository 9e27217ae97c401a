"""Entries for five recipes, and what they come to: counted here, read once."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import redis

from tests.legs.recipes.conftest import recipe_of

HOUR = 3_600_000  # ms
BEGIN = 1_767_225_600_000  # 2026-01-01
# What each query reads.
READ = {
    "totals": ["purchases"],
    "windows": ["north", "south"],
    "hashes": ["moves"],
    "delta": ["sales"],
    "changes": ["shop.public.customers"],
}


class Feed:
    """Entries for all queries, and what they come to.

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
        self.customers: dict[int, dict[str, object]] = {}
        self.malformed = 0
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
                self._change(sent, n)
                self._reading(sent, BEGIN + n * self._apart, f"s{n % 3}", Decimal(n % 9), ("north", "south")[n % 2])
            sent.execute()
        self._n += 50

    def _change(self, sent: redis.client.Pipeline, n: int) -> None:
        """A change of a customer, in either of Debezium's formats; some come twice, with their tombstone, or are no
        JSON."""
        key = n * n % 11
        before = self.customers.get(key)
        after = {"id": key, "name": f"c{n}", "credit": f"{n}.50"} if before is None or n % 5 else None
        source = {"ts_ms": BEGIN + n, "lsn": n}
        op = "d" if after is None else "c" if before is None else "u"
        value = json.dumps({"before": before, "after": after, "source": source, "op": op})
        name = json.dumps({"id": key})
        stream = "example:shop.public.customers"
        for _ in range(1 + (n % 7 == 0)):
            sent.xadd(stream, {"key": name, "value": value} if n % 2 else {name: value})
        if after is None:
            del self.customers[key]
            sent.xadd(stream, {"key": name, "value": "default"})
        else:
            self.customers[key] = after
        if n % 25 == 3:
            sent.xadd(stream, {"key": name, "value": "{"})
            self.malformed += 1

    def close_the_windows(self) -> None:
        """A reading much later than all others, which itself is in no closed window."""
        self._client.xadd("example:north", {"sensor": "last", "degrees": "0"}, id=f"{BEGIN + 1000 * HOUR}-0")

    def _reading(self, sent: redis.client.Pipeline, at: int, sensor: str, degrees: Decimal, where: str) -> None:
        sent.xadd(f"example:{where}", {"sensor": sensor, "degrees": str(degrees)}, id=f"{at}-0")
        count, total = self.windows.get((at // HOUR, sensor), (0, Decimal(0)))
        self.windows[at // HOUR, sensor] = (count + 1, total + degrees)

    def check(self, query: str, folder: Path) -> None:
        """Whether the query has made of the entries what they come to, and left none pending."""
        {
            "totals": self._totals,
            "windows": self._windows,
            "hashes": self._hashes,
            "delta": self._delta,
            "changes": self._changes,
        }[query](folder)
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

    def _changes(self, folder: Path) -> None:
        rows = recipe_of("latest_of_changes").rows_in(str(folder / "customers"))
        assert sorted((row["id"], row["name"], str(row["credit"])) for row in rows) == sorted(
            (row["id"], row["name"], row["credit"]) for row in self.customers.values()
        )
        assert self._client.xlen("example:shop.public.customers:dead") == self.malformed

    def _delta(self, folder: Path) -> None:
        sold = recipe_of("delta_table").rows_in(str(folder / "table"))
        assert sorted((row["customer"], row["amount"]) for row in sold) == sorted(self.sales)
