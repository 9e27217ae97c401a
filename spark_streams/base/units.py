"""Numbers with their units, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def duration(ms: float | None) -> str:
    """Return a duration: `0 ms`, `850 ms`, `12.3 s`, `4 m 05 s`, `3 h 20 m`, `2 d 3 h`; `?` for None."""
    if ms is None:
        return "?"
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} m {seconds:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02} m"
    return f"{hours // 24} d {hours % 24} h"


def rate(value: float | None) -> str:
    """Return a number per second: `0`, `7.5`, `12,345`; `?` for None."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: `1 dead letter`, `1,234 dead letters`. plural: if it is not the singular and s."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def count(value: int | None, at_least: bool = False) -> str:
    """Return a number: `12,345`; `10,000+` if there are more; `?` for None."""
    return "?" if value is None else f"{value:,}{'+' if at_least else ''}"


def short(value: float) -> str:
    """Return a short number for axes: `950`, `12k`, `1.5M`, `2G`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def size(count: int) -> str:
    """Return a number of bytes: `950 B`, `12 kB`, `1.5 MB`, `2 GB`."""
    text = short(count)
    return f"{text[:-1]} {text[-1]}B" if count >= 1000 else f"{count} B"


def binary_size(count: int) -> str:
    """Return a number of bytes in units of 1,024, as servers set them: `900 bytes`, `1.5 MB`, `512 MB`, `2 GB`."""
    value: float = count
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024 or unit == "GB":
            break
        value /= 1024
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the last `width` values as bars from zero to their maximum; a blank for None."""
    last = list(values)[-width:] if width > 0 else []
    top = max((v for v in last if v is not None), default=0)
    marks = [" " if v is None else _BARS[0 if top <= 0 else min(7, int(v / top * 7.999))] for v in last]
    return "".join(marks).rjust(width)
