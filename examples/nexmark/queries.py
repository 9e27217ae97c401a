"""Nexmark's queries as Spark SQL over the views person, auction and bid, which have a watermark on dateTime.

Each is one statement for a stream and for a table. A stream can hand out a window only when it has closed, so q4 has a
second statement, over the rows of the first: Spark refuses an average over all time behind another aggregation.
"""

from __future__ import annotations

from typing import NamedTuple

from examples.nexmark.events import LONGEST


class Query(NamedTuple):
    """A query. real: holds for rows of real events, not for those that end the input; then: over its rows, `rows`."""

    title: str
    sql: str
    real: str
    then: str = ""


QUERIES = {
    "q0": Query("pass through", "SELECT auction, bidder, price, dateTime FROM bid", "auction > 0"),
    "q1": Query(
        "another currency",
        "SELECT auction, bidder, CAST(price * 0.908 AS DECIMAL(23, 3)) AS euro, dateTime FROM bid",
        "auction > 0",
    ),
    "q2": Query("some auctions", "SELECT auction, price FROM bid WHERE auction % 123 = 0", "auction > 0"),
    "q3": Query(
        "sellers of some states",
        """
        SELECT p.name, p.city, p.state, a.id
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
        """,
        "id > 0",
    ),
    "q4": Query(
        "average closing price of a category",
        f"""
        SELECT a.id, a.category, a.dateTime, MAX(b.price) AS final
        FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime >= a.dateTime AND b.dateTime <= a.expires
          AND b.dateTime <= a.dateTime + INTERVAL {LONGEST} SECONDS
        GROUP BY a.id, a.category, a.dateTime
        """,
        "id > 0",
        "SELECT category, AVG(final) AS average FROM rows GROUP BY category",
    ),
    "q5": Query(
        "auctions with the most bids of a sliding window",
        """
        SELECT window.start AS begin, window.end AS end, INLINE(FILTER(all, one -> one.bids = most))
        FROM (
          SELECT window, COLLECT_LIST(STRUCT(auction, bids)) AS all, MAX(bids) AS most
          FROM (
            SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS window, COUNT(*) AS bids
            FROM bid GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')
          )
          GROUP BY window
        )
        """,
        "auction > 0",
    ),
    "q7": Query(
        "the highest bid of a window",
        """
        SELECT window.end AS end, best.price, best.dateTime, best.auction, best.bidder
        FROM (
          SELECT window(dateTime, '10 seconds') AS window, MAX(STRUCT(price, dateTime, auction, bidder)) AS best
          FROM bid GROUP BY window(dateTime, '10 seconds')
        )
        """,
        "auction > 0",
    ),
    "q8": Query(
        "new persons who open auctions",
        """
        SELECT id, name, window.start AS begin
        FROM (
          SELECT DISTINCT p.id, p.name, p.window
          FROM (SELECT id, name, window(dateTime, '10 seconds') AS window FROM person) p
          JOIN (SELECT seller, window(dateTime, '10 seconds') AS window FROM auction) a
            ON p.id = a.seller AND p.window = a.window
        )
        """,
        "id > 0",
    ),
    "q11": Query(
        "bids of a session",
        """
        SELECT bidder, session_window.start AS begin, session_window.end AS end, COUNT(*) AS bids
        FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds')
        """,
        "bidder > 0",
    ),
}
