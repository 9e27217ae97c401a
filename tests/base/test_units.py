"""Numbers of bytes, as people read them."""

from __future__ import annotations

from spark_streams.base.units import binary_size


def test_a_size_has_three_digits_and_a_unit() -> None:
    sizes = [
        binary_size(count) for count in (0, 900, 1536, 999 << 10, 1023 << 10, (1000 << 10) - 1, 512 << 20, 3 << 40)
    ]
    assert sizes == ["0 bytes", "900 bytes", "1.5 KB", "999 KB", "1,023 KB", "1,000 KB", "512 MB", "3,072 GB"]
