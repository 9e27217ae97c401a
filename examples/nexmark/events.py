"""Events of the Nexmark benchmark: persons, auctions and bids of an online auction, in its published proportions.

Of 50 events one is a person, three are auctions, 46 are bids. Half of the bids go to a popular auction, three of four
come from a popular bidder. The same seed gives the same events. The last event of each kind is an hour later, with the
ID 0: it moves the watermark on, so that all windows before it close.
"""

from __future__ import annotations

import datetime
import random
import string
from collections.abc import Iterator
from typing import NamedTuple

PERSON, AUCTION, BID = "person", "auction", "bid"
SCHEMAS = {
    PERSON: "id BIGINT, name STRING, email STRING, creditCard STRING, city STRING, state STRING, dateTime TIMESTAMP",
    AUCTION: "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, dateTime TIMESTAMP, "
    "expires TIMESTAMP, seller BIGINT, category BIGINT",
    BID: "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, dateTime TIMESTAMP, extra STRING",
}
RATE = 10_000  # events per second of event time
LONGEST = 20  # seconds between the begin and the end of an auction
_CYCLE, _PERSONS, _AUCTIONS = 50, 1, 3
_FIRST = 1000  # the lowest ID
_CATEGORIES = range(10, 15)
_PLACES = (
    ("Phoenix", "AZ"), ("Los Angeles", "CA"), ("San Francisco", "CA"), ("Boise", "ID"), ("Portland", "OR"),
    ("Bend", "OR"), ("Redmond", "WA"), ("Seattle", "WA"), ("Kent", "WA"), ("Cheyenne", "WY"),
)  # fmt: skip
_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_POPULAR, _RECENT = 100, 100  # one of so many IDs is popular; bids go to so many of the last auctions
_BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Event(NamedTuple):
    """An event: its kind, and its fields as text."""

    kind: str
    fields: dict[str, str]


def events(count: int, seed: int = 1) -> Iterator[Event]:
    """Yield so many events in order of time, then the three that end them."""
    chance = random.Random(seed)
    for number in range(count):
        cycle, place = divmod(number, _CYCLE)
        persons, auctions = cycle * _PERSONS, cycle * _AUCTIONS
        at = _BEGIN + datetime.timedelta(microseconds=number * 1_000_000 // RATE)
        if place < _PERSONS:
            yield Event(PERSON, _person(chance, _FIRST + persons + place, at))
        elif place < _PERSONS + _AUCTIONS:
            yield Event(AUCTION, _auction(chance, _FIRST + auctions + place - _PERSONS, at, persons + 1))
        else:
            yield Event(BID, _bid(chance, at, persons + 1, auctions + _AUCTIONS))
    late = _BEGIN + datetime.timedelta(microseconds=count * 1_000_000 // RATE, hours=1)
    yield Event(PERSON, _person(chance, 0, late))
    yield Event(AUCTION, _auction(chance, 0, late, 1) | {"seller": "0", "category": "0"})
    yield Event(BID, _bid(chance, late, 1, 1) | {"auction": "0", "bidder": "0"})


def _person(chance: random.Random, number: int, at: datetime.datetime) -> dict[str, str]:
    city, state = chance.choice(_PLACES)
    name = f"{chance.choice(_NAMES)} {_letters(chance, 6)}"
    card = " ".join(f"{chance.randrange(10_000):04d}" for _ in range(4))
    email = f"{_letters(chance, 7)}@{_letters(chance, 5)}.com"
    return {
        "id": str(number), "name": name, "email": email, "creditCard": card, "city": city, "state": state,
        "dateTime": _text(at),
    }  # fmt: skip


def _auction(chance: random.Random, number: int, at: datetime.datetime, persons: int) -> dict[str, str]:
    price = _price(chance)
    lasts = datetime.timedelta(milliseconds=chance.randrange(1, LONGEST * 1000))
    return {
        "id": str(number), "itemName": _letters(chance, 20), "description": _letters(chance, 100),
        "initialBid": str(price), "reserve": str(price + _price(chance)), "dateTime": _text(at),
        "expires": _text(at + lasts), "seller": str(_popular(chance, persons, 4)),
        "category": str(chance.choice(_CATEGORIES)),
    }  # fmt: skip


def _bid(chance: random.Random, at: datetime.datetime, persons: int, auctions: int) -> dict[str, str]:
    channel = chance.choice(_CHANNELS)
    recent = max(0, auctions - _RECENT)
    auction = _popular(chance, auctions, 2) if chance.randrange(2) else _FIRST + chance.randrange(recent, auctions)
    return {
        "auction": str(auction), "bidder": str(_popular(chance, persons, 4)), "price": str(_price(chance)),
        "channel": channel, "url": f"https://www.example.com/{_letters(chance, 12)}/item?channel={channel}",
        "dateTime": _text(at), "extra": _letters(chance, 20),
    }  # fmt: skip


def _popular(chance: random.Random, count: int, share: int) -> int:
    """Return the ID of the last popular one of `count`, or, one time of `share`, of any."""
    return _FIRST + ((count - 1) // _POPULAR * _POPULAR if chance.randrange(share) else chance.randrange(count))


def _price(chance: random.Random) -> int:
    return round(10 ** (chance.random() * 6) * 100)


def _letters(chance: random.Random, size: int) -> str:
    return "".join(chance.choices(string.ascii_lowercase, k=size))


def _text(at: datetime.datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
