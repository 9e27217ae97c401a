"""CRC-64 with Jones' polynomial, as Redis puts it at the end of a dump.

Reflected, not inverted: the CRC of `123456789` is e9c6d914c4b8d9ca. A table lookup per byte is slow in Python, so long
data is cut into lanes of equal length, which are computed together, one byte of each at a time. The eight bytes of all
registers are eight byte strings; `bytes.translate` is the lookup, and long integers do the exclusive-or.

    lane 0   b0  b1  b2 …        register bytes   r0: [lane 0, lane 1, lane 2 …]
    lane 1   b0  b1  b2 …                         r1: [ … ]
    lane 2   b0  b1  b2 …                         …

Then the lanes are joined. To append a lane, the CRC so far is advanced over as many zeros as the lane is long, and
xored with the CRC of the lane. Advancing is linear in the register, so it takes eight lookups.
"""

from __future__ import annotations

_POLYNOMIAL = 0x95AC9329AC4BC9B5  # ad93d23594c935a9 with its bits reflected
_LANES = 2048
_LONG = 64 * 1024  # bytes from which on lanes are faster


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()
_PLANES = [bytes(value >> 8 * place & 0xFF for value in _TABLE) for place in range(8)]


def crc64(data: bytes, crc: int = 0) -> int:
    """Return the CRC of the data, continuing from the CRC of earlier data."""
    if len(data) >= _LONG:
        length = len(data) // _LANES
        for lane in _lanes(data[: length * _LANES], length):
            crc = _skip(crc, length) ^ lane
        data = data[length * _LANES :]
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def _lanes(data: bytes, length: int) -> list[int]:
    """Return the CRC of each lane of this length."""
    registers = [bytes(_LANES)] * 8
    for offset in range(length):
        low = _xor(registers[0], data[offset::length])
        registers = [_xor(registers[place + 1], low.translate(_PLANES[place])) for place in range(7)]
        registers.append(low.translate(_PLANES[7]))
    return [int.from_bytes(bytes(lane), "little") for lane in zip(*registers, strict=True)]


def _xor(first: bytes, second: bytes) -> bytes:
    return (int.from_bytes(first, "little") ^ int.from_bytes(second, "little")).to_bytes(_LANES, "little")


_skips: dict[int, list[list[int]]] = {}


def _skip(crc: int, zeros: int) -> int:
    """Return the CRC after this number of zero bytes."""
    tables = _skips.get(zeros)
    if tables is None:
        _skips.clear()
        tables = _skips[zeros] = _skip_tables(zeros)
    return _apply(tables, crc)


def _apply(tables: list[list[int]], crc: int) -> int:
    moved = 0
    for place in range(8):
        moved ^= tables[place][crc >> 8 * place & 0xFF]
    return moved


def _skip_tables(zeros: int) -> list[list[int]]:
    """Return eight tables, one for each byte of the register, by squaring: over n zeros, then over 2n."""
    step = [[_one_zero(byte << 8 * place) for byte in range(256)] for place in range(8)]
    tables: list[list[int]] | None = None
    while zeros:
        if zeros & 1:
            tables = step if tables is None else [[_apply(step, value) for value in table] for table in tables]
        zeros >>= 1
        if zeros:
            step = [[_apply(step, value) for value in table] for table in step]
    assert tables is not None
    return tables


def _one_zero(crc: int) -> int:
    return _TABLE[crc & 0xFF] ^ crc >> 8
