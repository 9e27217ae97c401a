"""Names of options: a deprecated name works, and one warning names the new one (docs/reference/compatibility.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from spark_streams.connector.errors import InvalidOptionError, UnknownOptionError
from spark_streams.connector.options import access_options
from spark_streams.connector.options import option as option_names
from spark_streams.connector.options.access_options import AccessOptions, check_before_use
from spark_streams.connector.options.option import Option, named, near, text_of
from spark_streams.connector.options.table import ACCESS
from spark_streams.jobs import job

# As after a release in which `answerTimeout` and `patience` became `replyTimeout`.
RENAMED: tuple[Option, ...] = tuple(
    replace(option, deprecated=("answerTimeout", "patience")) if option.name == "replyTimeout" else option
    for option in ACCESS
)


@dataclass(frozen=True, kw_only=True)
class RenamedOptions(AccessOptions):
    TABLE: ClassVar[tuple[Option, ...]] = RENAMED


@pytest.fixture(autouse=True)
def _no_warning_yet() -> Iterator[None]:
    option_names._warn.cache_clear()
    yield
    option_names._warn.cache_clear()


@pytest.mark.parametrize("name", ["answerTimeout", "ANSWERTIMEOUT", "patience"])
def test_a_deprecated_name_works_and_one_warning_names_the_new_one(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "spark_streams.options"):
        for _ in range(3):  # Spark asks for a reader several times
            options = RenamedOptions.parse({"url": "embedded:", name: "7s"})
    assert (options.reply_timeout, options.explicit) == (7_000, {"url", "replyTimeout"})
    assert caplog.messages == [
        f"server option {name!r} is deprecated and will be removed: set 'replyTimeout' to the same value"
    ]


def test_the_new_name_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "spark_streams.options"):
        assert RenamedOptions.parse({"url": "embedded:", "replytimeout": "7s"}).reply_timeout == 7_000
    assert not caplog.messages


def test_two_names_of_one_option_are_refused_together() -> None:
    with pytest.raises(
        InvalidOptionError,
        match="server options 'patience' and 'replyTimeout' are names of the same option: set only 'replyTimeout'",
    ):
        RenamedOptions.parse({"url": "embedded:", "patience": "7s", "replyTimeout": "8s"})


def test_a_value_under_a_deprecated_name_is_checked_as_that_of_the_option() -> None:
    with pytest.raises(InvalidOptionError, match=r"server option replyTimeout='soon' "):
        RenamedOptions.parse({"url": "embedded:", "patience": "soon"})


def test_a_deprecated_name_passes_before_use_and_is_never_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_options, "_SIDES", (("source", RENAMED), ("sink", ACCESS)))
    check_before_use({"answerTimeout": "7s"})
    with pytest.raises(InvalidOptionError, match="source option replyTimeout='soon'"):
        check_before_use({"answerTimeout": "soon"})
    with pytest.raises(UnknownOptionError) as error:
        check_before_use({"answerTimeou": "7s"})
    assert "answerTimeout'" not in str(error.value)
    assert near("replyTimeou", RENAMED) == "replyTimeout"


@pytest.mark.parametrize(
    ("given", "linked"),
    [
        ({"replyTimeout": "soon"}, "replyTimeout"),
        ({"url": "localhost"}, "url"),
        ({"password": "a", "passwordFile": "b"}, "password"),
        ({"username": "u"}, "username"),
        ({"url": "redis://u:p@h", "username": "u", "password": "p"}, "url"),
    ],
)
def test_an_error_ends_with_the_command_that_shows_the_option(given: dict[str, str], linked: str) -> None:
    with pytest.raises(InvalidOptionError) as error:
        AccessOptions.parse({"url": "redis://h", **given})
    assert str(error.value).endswith(f" (rstream help options#{linked})")
    assert str(error.value).count("RSTREAM_INVALID_OPTION") == str(error.value).count("rstream help") == 1


def test_the_text_of_an_option_is_found_by_each_of_its_names() -> None:
    for name in ("replyTimeout", "REPLYTIMEOUT", "answerTimeout", "patience"):
        assert text_of("replyTimeout", {"url": "embedded:", name: "7s"}, RENAMED) == "7s"
    assert text_of("replyTimeout", {"url": "embedded:"}, RENAMED) is None
    assert [option.name for option in named("Patience", RENAMED)] == ["replyTimeout"]


def test_a_table_of_a_job_names_its_server_and_login_by_deprecated_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its login is never mixed with the login of the job."""
    renamed = tuple(replace(one, deprecated=("user",)) if one.name == "username" else one for one in ACCESS)
    monkeypatch.setattr(job, "ACCESS", renamed)
    assert job.access_of({"user": "u", "streams": "s"}) == {"user": "u"}
    inherited = job.inherit_access({"url": "redis://a", "password": "secret"}, {"user": "u", "streams": "s"})
    assert inherited == {"url": "redis://a", "user": "u", "streams": "s"}


def test_no_name_belongs_to_two_options_of_a_table() -> None:
    for _, table in access_options._SIDES:
        by_name: dict[str, set[str]] = {}
        for option in table:
            for name in option.names:
                by_name.setdefault(name.lower(), set()).add(option.name)
        assert all(len(options) == 1 for options in by_name.values())
