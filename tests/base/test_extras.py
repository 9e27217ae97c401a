"""Pip's command for an extra is true for who has a clone, a wheel or a release."""

from __future__ import annotations

import pytest

from spark_streams.base import extras


@pytest.mark.parametrize(
    ("released", "is_installed", "command"),
    [
        ("", True, "pip install 'spark-streams[spark]'"),
        ("", False, "pip install '/path/to/spark-streams[spark]'"),
        ("0.1.0", True, "pip install 'spark-streams[spark]'"),
        ("0.1.0", False, "pip install 'spark-streams[spark]'"),
    ],
)
def test_before_a_release_pip_is_told_the_name_only_if_it_has_installed_the_package(
    released: str, is_installed: bool, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/project/test_air_gapped.py runs the command: pip keeps the package that it has installed."""
    monkeypatch.setattr(extras, "RELEASED", released)
    monkeypatch.setattr(extras, "_is_installed", lambda: is_installed)
    assert extras.command_for("spark") == command
    assert extras.command_that_installs("pyspark") == f"{command} (or set SPARK_HOME)"
    assert extras.lacks("x", "pyspark") == f"x needs pyspark, and this Python has none: {command} (or set SPARK_HOME)"


def test_a_package_of_no_extra_has_its_own_name() -> None:
    assert extras.command_that_installs("pandas") == "pip install pandas"
