"""The rule of docs/reference/keys.md once more, by nothing of the product's and nothing of zlib's: bit by bit."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "keys.md").read_text(encoding="utf-8")

_tags: dict[int, int] = {}
_numbers = itertools.count()


def crc32(data: bytes) -> int:
    """CRC-32 of IEEE 802.3, reflected."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def crc16(data: bytes) -> int:
    """CRC-16 of XMODEM, as Redis Cluster has it."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ (0x1021 if crc & 0x8000 else 0)) & 0xFFFF
    return crc


def shard_of(stream: str, key: str, count: int) -> str:
    """The name of the stream that rows with this key go to."""
    place = crc32(key.encode()) % count
    middle = (2 * place + 1) * 8192 // count
    while middle not in _tags:  # numbers in their order, so that the smallest one stays
        number = next(_numbers)
        _tags.setdefault(crc16(str(number).encode()) % 16384, number)
    tag = _tags[middle]
    return f"{stream}:{place}/{count}:{{{tag}}}"


def vector() -> list[tuple[str, int, str, str]]:
    """What the page says: key, its CRC-32, the shard of 8 and the shard of 3."""
    rows = re.findall(r"^\| (.+?) \| `([0-9a-f]{8})` \| `(\S+)` \| `(\S+)` \|$", PAGE, re.M)
    return [(_key(shown), int(crc, 16), of_8, of_3) for shown, crc, of_8, of_3 in rows]


def _key(shown: str) -> str:
    """`orders` stands for itself; the page says the others in words."""
    words = {"(empty, or null)": "", "`a`, 1,000 times": "a" * 1_000}
    return words.get(shown, shown.strip("`"))
