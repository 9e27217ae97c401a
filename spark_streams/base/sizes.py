"""Numbers of bytes, as text. Pure."""

from __future__ import annotations


def size(count: int) -> str:
    """Return a size with its unit: `900 bytes`, `1.5 MB`, `512 MB`, `2 GB`."""
    value: float = count
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024 or unit == "GB":
            break
        value /= 1024
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
