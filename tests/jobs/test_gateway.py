"""The JVM of a job in this Python: whose settings it gets."""

from __future__ import annotations

import pytest
from pyspark import SparkContext

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.settings.spark_start import start_jvm


@pytest.mark.parametrize("words", ["--properties-file mine.conf", "--properties-file=mine.conf"])
def test_a_file_of_settings_that_spark_would_not_read_is_refused(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads the last of two files; the other one's settings would be lost in silence."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--name mine {words} pyspark-shell")
    with pytest.raises(ConfigError, match=r"Spark reads only one such file: move its settings into \[spark\]"):
        start_jvm({"spark.a": "b"})
