"""Fingerprints: a row as 64 bits, and multisets of them.

The ledger identifies rows by their fingerprints. So a retry finds each row that is already written, in whatever order
its rows come. The probability that two different rows of one batch have the same fingerprint is n²/2^65: one in thirty
million, if a million rows are written and a million compared. It matters only if a failure happens in between.

Pure, and without a Python object per row: the bytes of a value are read as little-endian words of eight. Each word is
mixed with its index (splitmix64's finalizer), and the sums are mixed with the value's length and the column's index.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.int64]

_LONG = 256  # bytes
_STEP = np.uint64(0x9E3779B97F4A7C15)
_COLUMN = np.uint64(0xD6E8FEB86659FD93)
_LENGTH = np.uint64(0xA0761D6478BD642F)
_NULL = np.uint64(0xE7037ED1A0B428DB)
_ONE, _TWO = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)  # the first n bytes of a word


def row_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """Return a uint64 per row of these binary columns. A null is not an empty value; the columns' order counts."""
    total = np.zeros(len(columns[0]), np.uint64)
    for index, column in enumerate(columns):
        hashes = _value_hashes(column)
        if column.null_count:
            hashes[~column.is_valid().to_numpy(zero_copy_only=False)] = _NULL
        with np.errstate(over="ignore"):
            total += _mix(hashes + _COLUMN * np.uint64(index + 1))
    return total


def _mix(x: Hashes) -> Hashes:
    with np.errstate(over="ignore"):
        x = x ^ (x >> np.uint64(30))
        x *= _ONE
        x ^= x >> np.uint64(27)
        x *= _TWO
        x ^= x >> np.uint64(31)
        return x


def _value_hashes(column: pa.Array) -> Hashes:
    """Return a hash per value. It depends on the value alone, not on the other values of the column."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    padded = np.zeros(last - first + 8, np.uint8)  # the last word may reach beyond the last value
    if last > first:
        padded[: last - first] = np.frombuffer(data, np.uint8, last - first, first)
    every_word = np.ndarray((last - first + 1,), np.dtype("<u8"), padded, 0, (1,))  # a word that begins at each byte
    length = np.diff(bounds)
    start = bounds[:-1] - first
    lengthy = np.flatnonzero(length > _LONG)
    if not len(lengthy):
        return _short_hashes(every_word, start, length)
    short = length <= _LONG
    hashes = np.empty(len(length), np.uint64)
    hashes[short] = _short_hashes(every_word, start[short], length[short])
    # For long values, a Python object each costs less than numpy's passes over all their words.
    view = padded.data
    places = zip(start[lengthy].tolist(), length[lengthy].tolist(), strict=True)
    digests = [blake2b(view[begin : begin + size], digest_size=8).digest() for begin, size in places]
    hashes[lengthy] = np.frombuffer(b"".join(digests), "<u8")
    return hashes


def _short_hashes(every_word: Hashes, start: Places, length: Places) -> Hashes:
    words = (length + 7) >> 3
    longest = int(words.max(initial=0))
    if longest <= 4 or longest * len(words) <= 2 * int(words.sum()):
        return _similar_values(every_word, start, length, longest)
    value = np.repeat(np.arange(len(length)), words)
    before = np.cumsum(words) - words
    place = np.arange(len(value)) - before[value]
    remaining = length[value] - 8 * place
    word = every_word[start[value] + 8 * place] & _MASKS[np.minimum(remaining, 8)]
    with np.errstate(over="ignore"):
        mixed = _mix(word + _STEP * (place + 1).astype(np.uint64))
        sums = np.zeros(len(mixed) + 1, np.uint64)
        np.cumsum(mixed, out=sums[1:])
        hashes: Hashes = sums[before + words] - sums[before] + _LENGTH * length.astype(np.uint64)
        return hashes


def _similar_values(every_word: Hashes, start: Places, length: Places, longest: int) -> Hashes:
    """The same for values of few words, or of about the same length: word by word over all rows."""
    shortest = int(length.min()) if len(length) else 0
    with np.errstate(over="ignore"):
        total = _LENGTH * length.astype(np.uint64)
        for place in range(longest):
            word_start = start + 8 * place
            if shortest >= 8 * (place + 1):
                total += _mix(every_word[word_start] + _STEP * np.uint64(place + 1))
                continue
            remaining = length - 8 * place
            if shortest > 8 * place:  # every value has at least a part of this word
                word = every_word[word_start] & _MASKS[np.minimum(remaining, 8)]
                total += _mix(word + _STEP * np.uint64(place + 1))
                continue
            remaining = np.clip(remaining, 0, 8)
            word = every_word[np.where(remaining > 0, word_start, 0)] & _MASKS[remaining]
            mixed = _mix(word + _STEP * np.uint64(place + 1))
            mixed[remaining == 0] = 0
            total += mixed
        return total


class Multiset:
    """Fingerprints with their counts. size: their number, equal fingerprints counted separately."""

    def __init__(self) -> None:
        self.size = 0
        self._keys = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.int64)

    @classmethod
    def from_hashes(cls, hashes: Hashes) -> Self:
        multiset = cls()
        multiset.add(hashes)
        return multiset

    def hashes(self) -> Hashes:
        """Return all fingerprints, each as often as the multiset contains it."""
        return np.repeat(self._keys, self._counts)

    def add(self, hashes: Hashes) -> None:
        keys, counts = np.unique(np.concatenate([self._keys, hashes]), return_inverse=True)
        self._counts = np.bincount(
            counts, np.concatenate([self._counts, np.ones(len(hashes), np.int64)]), len(keys)
        ).astype(np.int64)
        self._keys = keys
        self.size += len(hashes)

    def matching(self, hashes: Hashes) -> Mask:
        """Return which of these the multiset contains: of equal ones, the first, as many as it contains."""
        is_matched = np.zeros(len(hashes), np.bool_)
        if not len(self._keys) or not len(hashes):
            return is_matched
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        rank = np.arange(len(ordered)) - np.repeat(begins, np.diff(np.append(begins, len(ordered))))
        indices = np.minimum(np.searchsorted(self._keys, ordered), len(self._keys) - 1)
        is_matched[order] = (self._keys[indices] == ordered) & (rank < self._counts[indices])
        return is_matched

    def remove(self, hashes: Hashes) -> None:
        """Remove these, as far as the multiset contains them."""
        taken = hashes[self.matching(hashes)]
        np.subtract.at(self._counts, np.searchsorted(self._keys, taken), 1)
        is_present = self._counts > 0
        self._keys, self._counts = self._keys[is_present], self._counts[is_present]
        self.size -= len(taken)
