"""Names of streams, groups and consumers as text and as labels: no two names are one, and Prometheus reads them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from itertools import product

import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st

from spark_streams.base.printable import label_text, name_text
from spark_streams.connector.lag.group_metrics import group_metrics
from spark_streams.connector.lag.survey import GroupLag
from spark_streams.connector.watch.metrics_page import MetricsPage
from tests.operations.monitor.prometheus import needs_prometheus, promtool
from tools.servers.server import Server

ODD = [
    "a\tb", "a\u00a0b", "a\u3000b", "a\u202eb", "a\rb", "a\nb", 'a"b', "a\\b", "a\\nb", "a\\tb", "a\x00b", "a\x1b[2Jb",
    "a\u2028b", "\U000e0001", "\\u00a0", "\\u202e", "\\xff", "\\x5cxff", "\\x5c", "\\\\", "\\u005cu202e", "ä é 中",
    "=,{}", "\x7f", "\x9b31m",
]  # fmt: skip
NO_TEXT = [b"\xff", b"\xa0", b"\xc2", b"s\xff\xfe", b"\xed\xb3\xbf", b"\\\xff", b"\\x\xff"]
NAMES = [*(name.encode() for name in ODD), *NO_TEXT]
PARTS = st.lists(
    st.sampled_from([b"\\", *(b"%c" % letter for letter in b"xuf5c0a"), b"\xff", b"\xa0", b"\xc2\xa0", b"\t"])
)


def parsed(text: str) -> list[str]:
    """The values of label `stream` in an exposition, as Prometheus reads them."""
    values = re.findall(r'stream="((?:[^"\\]|\\.)*)"', text)
    return [re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value) for value in values]


@given(PARTS, PARTS)
@example([b"\xff"], [b"\\", b"x", b"f", b"f"])
@example(["\u00a0".encode()], [b"\xa0"])
@example(["\u00a0".encode()], [b"\\", b"u", b"0", b"0", b"a", b"0"])
def test_two_names_never_share_a_text_or_a_label(first: list[bytes], second: list[bytes]) -> None:
    one, other = b"".join(first), b"".join(second)
    assert (name_text(one) == name_text(other)) == (one == other)
    assert (label_text(name_text(one)) == label_text(name_text(other))) == (one == other)


def test_none_of_the_odd_names_share_a_label() -> None:
    """Nor does a name of it with an escaped form of another."""
    forms = {*NAMES, *(label_text(name_text(name)).encode() for name in NAMES)}
    forms |= {label_text(name_text(name)).encode() for name in forms}
    assert len({label_text(name_text(name)) for name in forms}) == len(forms)


@pytest.mark.parametrize(
    ("name", "text", "label"),
    [
        (b"orders", "orders", "orders"), (b"a\\b", "a\\b", "a\\b"), ("ä中".encode(), "ä中", "ä中"),
        (b"s\xff", "s\\xff", "s\\xff"), (b"s\\xff", "s\\x5cxff", "s\\x5cxff"), (b"a\tb", "a\tb", "a\\u0009b"),
        ("\u202e".encode(), "\u202e", "\\u202e"), (b"\\u202e", "\\u202e", "\\u005cu202e"),
        (b"a\nb", "a\nb", "a\nb"), ("\U000e0001".encode(), "\U000e0001", "\\U000e0001"),
    ],
)  # fmt: skip
def test_names_as_text_and_as_labels(name: bytes, text: str, label: str) -> None:
    assert (name_text(name), label_text(name_text(name))) == (text, label)
    assert name_text(os.fsdecode(name)) == text, "from the command line"


@given(st.text("ab\u202e\\", min_size=150, max_size=600), st.text("ab\u202e\\", min_size=150, max_size=600))
@example("a" * 200, "a" * 201)
@example("a" * 201, "a" * 202)
@example("a" * 300, label_text("a" * 300))
@example("\u202e" * 100, label_text("\u202e" * 100))
def test_a_label_has_at_most_200_characters(first: str, second: str) -> None:
    """The beginning and a hash; a name that another client makes equal to that has another label."""
    one, other = label_text(first), label_text(second)
    assert len(one) <= 200 >= len(other)
    assert (one == other) == (first == second)
    assert label_text("a" * 200) == "a" * 200
    assert label_text("a" * 300).startswith("a" * 160)


class OfLongNames:
    """Returns samples of 100 groups whose names have 1,023 and 30,000 bytes, none of them printable."""

    def collect(self) -> object:
        return group_metrics(
            GroupLag("\u202e" * 341, f"{number}" + "\u202e" * 10_000, 1, False, 1, 0, None, "1-1", 1)
            for number in range(100)
        )


def test_long_names_make_no_large_page() -> None:
    text = MetricsPage(OfLongNames()).text()  # type: ignore[arg-type]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len({*lines}) == len(lines) >= 400
    assert max(map(len, lines)) < 600


class OfNames:
    """Returns one sample for each pair of names."""

    def collect(self) -> object:
        return group_metrics(
            GroupLag(name_text(stream), name_text(group), 1, False, 1, 0, None, "1-1", 1)
            for stream, group in product(NAMES, NAMES[:3])
        )


@needs_prometheus
def test_promtool_reads_all_names_and_finds_no_sample_twice() -> None:
    text = MetricsPage(OfNames()).text()  # type: ignore[arg-type]
    promtool("check", "metrics", given=text)
    samples = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line.startswith("rstream_lag_entries")]
    assert len({*samples}) == len(samples) == 3 * len(NAMES)
    assert {c for c in text if not c.isprintable()} == {"\n"}


@pytest.mark.in_turn
def test_once_prints_the_bytes_of_a_scrape(server: Server, client: redis.Redis) -> None:
    """In any locale, and what `rstream exporter` serves at the same time."""
    for number, name in enumerate(NAMES):
        client.xadd(name, {"n": 1}, id=f"1-{number + 1}")
        client.xgroup_create(name, b"g" + name, id="$")
    command = [sys.executable, "-m", "spark_streams.cli", "exporter", "--url", server.url]
    serving = subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        assert serving.stderr is not None
        address = serving.stderr.readline().rpartition(" at ")[2].strip()
        with urllib.request.urlopen(address, timeout=20) as reply:
            served = reply.read()
    finally:
        serving.terminate()
        serving.wait(20)
    for locale in ("C", "C.UTF-8", "POSIX"):
        printed = subprocess.run(
            [*command, "--once"],
            capture_output=True,
            check=True,
            timeout=60,
            env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        ).stdout
        assert _without_numbers(printed) == _without_numbers(served)
    streams = [value for value in parsed(served.decode()) if value]
    assert {*streams} == {label_text(name_text(name)) for name in NAMES}


def _without_numbers(page: bytes) -> list[bytes]:
    """The lines, without the values that change from scrape to scrape."""
    return sorted(line if line.startswith(b"#") else line.rsplit(b" ", 1)[0] for line in page.split(b"\n"))
