"""A limit of memory for reading a file whose content nobody has checked.

A few bytes of Parquet or JSON may stand for gigabytes, in ways that no check of the file's head finds. So the operating
system refuses the memory, while a part is read. Linux only: elsewhere nothing is limited.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MOST_MEMORY = 512 << 20  # bytes for a part, beyond what the process has
_MAPPED = Path("/proc/self/statm")  # the first number: pages of this process


def limited(items: Iterable[T]) -> Iterator[T]:
    """Yield the items. Raises MemoryError if one takes more than MOST_MEMORY until it is there."""
    iterator = iter(items)
    while True:
        with limited_memory():
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


@contextmanager
def limited_memory() -> Iterator[None]:
    """Raise MemoryError if the block takes more than MOST_MEMORY."""
    if not _MAPPED.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(_MAPPED.read_text().split()[0]) * resource.getpagesize()
    limits = [limit for limit in (mapped + MOST_MEMORY, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
