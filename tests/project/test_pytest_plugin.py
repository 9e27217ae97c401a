"""The fixtures that the package brings for tests of users: they come by themselves, and cost nothing where unused."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]
NOTHING_HEAVY = (
    "pyspark",
    "pyarrow",
    "numpy",
    "redis",
    "hiredis",
    "spark_streams.engine",
    "spark_streams.connector.wire",
)
TESTS = """
    import time

    import redis

    engines = []

    def test_an_engine_is_there_and_empty(rstream_engine, rstream_url, rstream_client):
        engines.append(rstream_engine.pid)
        assert rstream_url == rstream_engine.url
        assert rstream_client.dbsize() == 0
        rstream_client.xadd("orders", {"customer": "ann"})
        redis.Redis.from_url(rstream_url, db=3).set("elsewhere", 1)
        rstream_engine.advance("1h")
        rstream_client.execute_command("DEBUG", "FAULT", "REFUSE", "READONLY")

    def test_the_next_test_has_the_same_engine_empty_again(rstream_engine, rstream_client):
        assert engines == [rstream_engine.pid]
        assert rstream_client.dbsize() == 0
        assert redis.Redis.from_url(rstream_engine.url, db=3).dbsize() == 0
        assert rstream_client.time()[0] - time.time() < 60
        rstream_client.xadd("orders", {"customer": "bob"})
        assert rstream_client.xrange("orders")[0][1] == {"customer": "bob"}

    def test_a_query_may_find_it_in_the_environment(rstream_url, monkeypatch):
        monkeypatch.setenv("RSTREAM_URL", rstream_url)
        from spark_streams.connector.wire.address import default_url
        assert default_url() == rstream_url
"""


def test_it_comes_with_the_package() -> None:
    """pytest loads what stands in this group wherever the package is installed."""
    points = [one.value for one in importlib.metadata.entry_points(group="pytest11", name="rstream")]
    assert set(points) == {"spark_streams.pytest_plugin"}, "run scripts/test, which installs this clone"


@pytest.mark.in_turn
def test_each_test_has_an_empty_engine_and_all_have_the_same(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    ended = pytester.runpytest_subprocess("-q", "-W", "error")
    ended.assert_outcomes(passed=3)


@pytest.mark.in_turn
def test_the_engine_ends_with_the_tests_that_used_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(rstream_engine):
            with open("pid", "w") as file:
                file.write(str(rstream_engine.pid))
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
    pid = (pytester.path / "pid").read_text()
    state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False).stdout
    assert state.strip()[:1] in ("", "Z")


def test_a_pytest_that_uses_none_of_it_loads_none_of_it(pytester: pytest.Pytester) -> None:
    """No engine, no client, no Arrow, no Spark: it is loaded into every pytest of the environment."""
    pytester.makepyfile(
        f"""
        import sys

        def test_what_is_loaded():
            assert "spark_streams.pytest_plugin" in sys.modules
            assert not [name for name in {NOTHING_HEAVY} if name in sys.modules]
        """
    )
    pytester.runpytest_subprocess("-q", "-p", "no:hypothesispytest").assert_outcomes(passed=1)


@pytest.mark.in_turn
def test_pytest_lists_the_fixtures(pytester: pytest.Pytester) -> None:
    told = pytester.runpytest_subprocess("--fixtures").stdout.str()
    for name in ("rstream_engine", "rstream_url", "rstream_client"):
        assert f"{name} -- " in told
    assert "_rstream_running_engine" not in told


def test_importing_it_takes_no_time() -> None:
    """Its own lines, beside pytest, which is there already: milliseconds, not the tenths that pyarrow takes."""
    program = (
        "import pytest, sys; before = set(sys.modules); import spark_streams.pytest_plugin;"
        "print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) <= {
        "spark_streams",
        "spark_streams.base",
        "spark_streams.base.version",
        "spark_streams.pytest_plugin",
    }
