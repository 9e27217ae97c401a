"""What a hostile client writes, for the console's pages: very many and very long names and values, and texts that a
page, a terminal, an address or a shell could take for something else.

Nothing of it may run: each script sets a variable of the page, MARKER; pictures and links lead to the host HOST.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from spark_streams.connector.deadletter import envelope
from spark_streams.connector.deadletter.envelope import dead_letter_fields

HOST = "evil.invalid"  # no such host exists (RFC 6761)
MARKER = "__pwned"
_PWNED = f"window.{MARKER}=1"
TEXTS: Mapping[str, bytes] = {
    "script": f"<script>{_PWNED}</script>".encode(),
    "closed script": f"</script><script>{_PWNED}</script>".encode(),
    "closed attribute": f'"><img src=//{HOST}/x onerror={_PWNED}>'.encode(),
    "other quote": f"' autofocus onfocus={_PWNED} x='".encode(),
    "no quote": f"x onmouseover={_PWNED}".encode(),
    "closed texts": f"</textarea></title></style></pre><svg onload={_PWNED}>".encode(),
    "comment": f"--><iframe srcdoc='<script>parent.{MARKER}=1</script>'></iframe><!--".encode(),
    "link": f"javascript:{_PWNED}//".encode(),
    "other host": f"//{HOST}/x".encode(),
    "style": f"</style><style>@import '//{HOST}/x'; * {{ display: none }}".encode(),
    "template": b"{{ 7 * 191 }}{% for x in range(9) %}${7*191}#{7*191}",
    "entity": f"&lt;script&gt;{_PWNED}&lt;/script&gt;&quot;&#39;".encode(),
    "terminal": b"\x1b[2J\x1b]0;title\x07\x1b]8;;http://" + HOST.encode() + b"\x1b\\link\x1b]8;;\x1b\\",
    "8-bit terminal": "\x9b31mred\x9b0m".encode(),
    "controls": bytes(range(32)) + b"\x7f",
    "bidi": "\u202egnp.exe\u202c \u2066x\u2069 \u200fright".encode(),
    "unseen": "a\u200bb\u00adc\ufeffd\u2028e\u2029f\U000e0041".encode(),
    "marks": ("z" + "\u0301" * 200).encode(),
    "wide": "﷽𒐫".encode() * 10,
    "no UTF-8": b"\xff\xfe\x80 cut: \xe2\x82",
    "surrogate": "\ud800".encode("utf-8", "surrogatepass"),
    "NUL": b"before\0after",
    "lines": b"one\ntwo\r\nthree\rfour\n\n\n",
    "event of the server": b"x\n\nevent: reload\ndata: {}\n\n",
    "header": b"x\r\nSet-Cookie: a=b\r\n\r\n<b>",
    "spaces": b"  two  spaces \t ",
    "empty": b"",
    "long word": b"w" * 5_000,
}
NAMES: Mapping[str, bytes] = {
    "long": (f"<img src=x onerror={_PWNED}>".encode() * 40)[:1_000],
    "path": b"../../etc/passwd",
    "encoded path": b"%2e%2e%2f%00",
    "query": b"a?b=c&name=orders#fragment",
    "plus": b"a+b c%20d;e",
    "option": b"--help",
    "dash": b"-",
    "quotes": b"it's \"quoted\" `id` $(id) \\",
    "pattern": b"[a-z]*?",
    "braces": b"{tag}{{ 7 * 191 }}",
    **{name: TEXTS[name] for name in (
        "script", "closed attribute", "other quote", "link", "other host", "terminal", "controls", "bidi", "unseen",
        "no UTF-8", "NUL", "lines", "spaces", "empty",
    )},
}  # fmt: skip
TARGET = b"hostile"  # a plain name: its entries, groups and dead letters are hostile
HOSTILE_DEAD = b"hostile:dead"
_LARGE = 10 * 1024 * 1024


@dataclass(frozen=True)
class HostileData:
    """streams, groups of TARGET, and IDs: (stream, ID) of entries and of dead letters, by what is hostile in them."""

    streams: Sequence[bytes]
    groups: Sequence[bytes]
    entries: Mapping[str, tuple[bytes, str]]
    letters: Mapping[str, tuple[bytes, str]]


def write_hostile(client: redis.Redis, large: int = _LARGE) -> HostileData:
    """Write what a hostile client can write. large: bytes of the largest value of an entry and of a dead letter."""
    entries = {name: (TARGET, _xadd(client, TARGET, fields)) for name, fields in hostile_entries(large).items()}
    groups = [client_group(client, TARGET, name) for name in NAMES.values()]
    for number, consumer in enumerate(NAMES.values()):
        client.xreadgroup(groups[number], consumer, {TARGET: ">"}, count=2)
    for consumer in NAMES.values():
        client.xreadgroup(groups[0], consumer, {TARGET: ">"}, count=1)
    _claim_oddly(client, groups[1])
    for name in NAMES.values():
        _xadd(client, name, [b"of", name])
        client_group(client, name, name)
        client.xreadgroup(name, name, {name: ">"})
    letters = {
        name: (HOSTILE_DEAD, _xadd(client, HOSTILE_DEAD, words)) for name, words in hostile_dead_letters(large).items()
    }
    _xadd(client, HOSTILE_DEAD, [*hostile_dead_letters(0)["one name"], b"dl.redriven", b"9 <b>x</b> " + TEXTS["link"]])
    for name in NAMES.values():
        stream = name + b":dead"
        words = dead_letter_fields([b"n", b"1"], {"stream": _text(name), "id": "1-0", "group": _text(name)})
        letters[f"in {name[:20]!r}"] = stream, _xadd(client, stream, words)
    return HostileData([TARGET, *NAMES.values()], groups, entries, letters)


def hostile_entries(large: int = _LARGE) -> dict[str, list[bytes]]:
    """Return words (field, value, field, value …) of entries, by what is hostile in them."""
    return {
        **{f"value: {name}": [b"field", text] for name, text in TEXTS.items()},
        **{f"field: {name}": [text, b"value"] for name, text in TEXTS.items()},
        "one name": [b"n", b"1", b"n", b"2", b"n", TEXTS["script"]],
        "all": [word for name, text in TEXTS.items() for word in (text, text + name.encode())],
        "fields": [word for n in range(10_000) for word in (b"field %d" % n, TEXTS["script"])],
        "large": [b"large", (b"<b>%b</b>" % TEXTS["script"] * (large // 40))[:large]],
    }


def hostile_dead_letters(large: int = _LARGE) -> dict[str, list[bytes]]:
    """Return words of dead letters: hostile fields, hostile envelopes, and both."""
    usual = {"stream": _text(TARGET), "id": "1-0", "group": "g", "stage": "read", "reason": "odd", "deliveries": "3"}
    numbers = ("9" * 5_000, "-1", "²", "", "nan", "1e9")
    odd = {
        "no ID": {"id": "no-id"}, "an ID that is too large": {"id": f"{2**64}-0"}, "no stream": {"stream": ""},
        "an empty envelope": dict.fromkeys(envelope.NAMES, ""), "previous": {"previous": f"javascript:{_PWNED}/1-1"},
        "previous of another host": {"previous": f"//{HOST}/x/1-1"},
        "itself": {"previous": _text(HOSTILE_DEAD) + "/1-1"},
        "times": {"first-failed": "9999999-99-99T99:99:99Z", "last-failed": "<b>yesterday</b>"},
        **{f"number {n}": {"deliveries": text, "redrives": text, "batch": text} for n, text in enumerate(numbers)},
        **{f"target: {name}": {"stream": _text(text), "group": _text(text)} for name, text in NAMES.items()},
    }  # fmt: skip
    return {
        **{name: dead_letter_fields(words, usual) for name, words in hostile_entries(large).items()},
        **{name: dead_letter_fields([b"n", b"1"], {**usual, **values}) for name, values in odd.items()},
        **{
            f"envelope: {name}": dead_letter_fields([b"n", b"1"], dict.fromkeys(envelope.NAMES, _text(text)))
            for name, text in TEXTS.items()
        },
        "an envelope within": dead_letter_fields(dead_letter_fields([b"n", b"1"], usual), usual),
        "a part of an envelope": [b"n", b"1", b"dl.stream", TARGET, b"dl.id", b"1-0", b"dl.reason", TEXTS["script"]],
    }


def client_group(client: redis.Redis, stream: bytes, name: bytes) -> bytes:
    """Create a group that reads the stream from its first entry."""
    client.execute_command("XGROUP", "CREATE", stream, name, "0", "MKSTREAM")
    return name


def _claim_oddly(client: redis.Redis, group: bytes) -> None:
    """Pending entries that were delivered at the epoch, very often, or decades ago."""
    odd: Sequence[tuple[str | int, ...]] = (("TIME", 0), ("RETRYCOUNT", 2**31), ("IDLE", 2**40, "RETRYCOUNT", 0))
    for (entry_id, _), words in zip(client.xrange(TARGET, count=3), odd, strict=True):
        command: tuple[Any, ...] = ("XCLAIM", TARGET, group, b"odd", 0, entry_id, *words, "FORCE", "JUSTID")
        client.execute_command(*command, parse_justid=True)


def _xadd(client: redis.Redis, stream: bytes, words: Sequence[bytes]) -> str:
    entry_id: Any = client.execute_command("XADD", stream, "*", *words)
    return entry_id.decode()


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
