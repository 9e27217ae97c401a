"""NAME=VALUE: each can be written, and reading takes linear time. Of a password file no more than a line is read."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from spark_streams.base.given_text import LONGEST_LINE, assignment, first_line, parse_assignment, without_login
from spark_streams.connector.errors import LoginError
from spark_streams.connector.wire.address import password_in


def test_each_name_and_value_is_read_as_it_was_written() -> None:
    names = ["".join(parts) for length in range(6) for parts in itertools.product("a=\\\n", repeat=length)]
    for name, value in itertools.product(names, ("", "b", "=", "\\=", "\\")):
        assert parse_assignment(assignment(name, value)) == (name, value)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("a=b=c", ("a", "b=c")),
        (r"a\=b=c", ("a=b", "c")),
        (r"a\\=b", ("a\\", "b")),
        (r"a\b=c", (r"a\b", "c")),
        ("=x", ("", "x")),
        ("abc", None),
        (r"a\=b", None),
        ("\\" * 100_000, None),
        ("\\" * 100_001 + "=", None),
        ("a" * 100_000, None),
    ],
)
def test_texts_of_a_person(text: str, pair: tuple[str, str] | None) -> None:
    assert parse_assignment(text) == pair


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", b""),
        (b"\nx", b""),
        (b"pw", b"pw"),
        (b"pw\r\nnext", b"pw"),
        (b"a b\n", b"a b"),
        (b"x" * LONGEST_LINE, b"x" * LONGEST_LINE),
    ],
)
def test_it_has_the_first_line(tmp_path: Path, content: bytes, line: bytes) -> None:
    file = tmp_path / "pw"
    file.write_bytes(content)
    assert first_line(file) == line


def test_a_file_without_an_end_is_refused() -> None:
    """The proof of concept: /dev/zero, or a large file by mistake, was read whole."""
    with pytest.raises(ValueError, match="more than 16,384 bytes"):
        first_line("/dev/zero")
    with pytest.raises(LoginError, match="/dev/zero cannot be read: its first line has more than 16,384 bytes"):
        password_in("/dev/zero")


def test_only_the_first_line_of_a_large_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "pw"
    with file.open("wb") as opened:
        opened.write(b"pw\n")
        opened.truncate(1 << 40)  # without blocks on the disk
    assert password_in(str(file)) == "pw"


@pytest.mark.parametrize(
    "uri",
    ["s3://KEY:SECRET@bucket/x", "s3://KEY:SEC/RET@bucket", "hdfs://ann:1@host:8020/x", "s3://KEY:@b", "s3://K%3AS@b"],
)
def test_a_uri_with_a_login_is_shown_without_it(uri: str) -> None:
    assert without_login(uri) == f"{uri.partition('://')[0]}://…"


@pytest.mark.parametrize(
    "text",
    [
        "/a:b@c", "s3://bucket/a:b@c", "hdfs://host:8020/x", "hdfs://ann@host:8020", "abfss://box@account.net/x",
        "s3://b?endpoint_override=http://h:9000", "hdfs://[::1]:8020/x", "file:///x", "lake.sales.orders", "a://b:1",
    ],
)  # fmt: skip
def test_a_text_without_a_login_stays(text: str) -> None:
    assert without_login(text) == text
