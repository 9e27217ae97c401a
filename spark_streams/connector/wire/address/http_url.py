"""The form of the URL of another HTTP service. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_root(url: str) -> bool:
    """Whether this is http(s)://host:port, with or without a path, and without a login and a query."""
    try:
        parts = urlsplit(url)
        is_plain = not ("@" in parts.netloc or parts.query or parts.fragment)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and is_plain
    except ValueError:
        return False
