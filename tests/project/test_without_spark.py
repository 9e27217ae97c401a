"""Where there is no Spark, all works that needs none, and the rest says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import spark_streams
from spark_streams.connector.deadletter.envelope import NAMES
from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.spark.installation import check_for_sink, check_for_spark
from tests.project.python_without import COMMANDS, run_without
from tools.servers.server import Server

PACKAGES = ("pyspark", "py4j")


@pytest.mark.in_turn
def test_the_commands_of_rstream_need_no_spark(engine_server: Server) -> None:
    with engine_server.client() as client:
        client.flushall()
        client.xadd("orders", {"customer": "ann", "amount": "12.50"})
        client.xgroup_create("orders", "billing", 0)
        client.xreadgroup("billing", "one", {"orders": ">"}, count=1)
        for reason in ("good", "bad"):
            told = {"stream": "orders", "id": "1-1", "stage": "read", "reason": reason, "redrives": "0"}
            told |= {"first-failed": "2026-01-01T00:00:00.000Z", "last-failed": "2026-01-01T00:00:00.000Z"}
            client.xadd("orders:dead", {"n": "1", **{f"dl.{name}": told.get(name, "") for name in NAMES}})
    commands = [
        *(
            "add orders customer=bob",
            "streams",
            "show orders",
            "groups orders",
            "lag",
            "pending orders --group billing",
        ),
        *("dead list", "dead show orders:dead", "dead export orders:dead"),
        *("dead redrive orders:dead --allow orders --reason good --yes",),
        *("dead purge orders:dead --yes", "url"),
    ]
    lines = [f"{one} --url {engine_server.url}" for one in commands]
    ended = run_without(PACKAGES, COMMANDS, "\n".join([*lines, "top --help", "serve --help"]))
    assert "Traceback" not in ended.stderr
    assert "pyspark" not in ended.stderr + ended.stdout
    codes = [line.split(" ", 2)[1] for line in ended.stdout.splitlines() if line.startswith("==")]
    assert codes == ["0"] * (len(commands) + 2), ended
    with engine_server.client() as client:
        assert (client.xlen("orders"), client.xlen("orders:dead")) == (3, 0)  # one redriven, one purged


@pytest.mark.in_turn
@pytest.mark.parametrize("name", [name for name in spark_streams.__all__ if name != "__version__"])
def test_what_needs_spark_says_how_to_get_one(name: str) -> None:
    call = {"route_dead_letters": "", "transaction": "('', None, 0, '')"}.get(name, "(None)")
    ended = run_without(PACKAGES, f"import spark_streams; spark_streams.{name}{call}")
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert f"[RSTREAM_UNSUPPORTED] spark_streams.{name} needs Spark, and this Python has no pyspark: " in said
    assert "pip install 'spark-streams[spark]', or run this with a Spark's own Python (spark-submit)" in said


@pytest.mark.in_turn
def test_rows_are_read_and_written_as_arrow_without_spark() -> None:
    """What a program without Spark may use: options, addresses, entries to columns and back."""
    ended = run_without(
        PACKAGES,
        "import spark_streams.base.ids, spark_streams.connector.options.source_options, "
        "spark_streams.connector.wire.session, spark_streams.connector.wire.entry_page, "
        "spark_streams.connector.source.rows.columns, spark_streams.connector.sink.chunk_writer, "
        "spark_streams.connector.deadletter.redrive",
    )
    assert ended.returncode == 0, ended.stderr


def test_dead_letters_are_written_without_spark_and_arrow(engine_server: Server) -> None:
    """By a consumer that has redis-py alone."""
    with engine_server.client() as client:
        client.flushall()
        client.xadd("orders", {"n": 1})
        client.xgroup_create("orders", "billing", 0)
        client.xreadgroup("billing", "worker-1", {"orders": ">"})
        ended = run_without(
            PACKAGES,
            "sys.modules['pyarrow'] = sys.modules['numpy'] = None\n"
            "import redis\n"
            "from spark_streams import dead_letters\n"
            f"client = redis.Redis.from_url({engine_server.url!r})\n"
            "[(_, [(entry_id, fields)])] = client.xreadgroup('billing', 'worker-1', {'orders': 0})\n"
            "dead_letters.write(client, 'orders', 'billing', entry_id, fields, to='orders:dead')",
        )
        assert ended.returncode == 0, ended.stderr
        assert (client.xlen("orders:dead"), client.xpending("orders", "billing")["pending"]) == (1, 0)


@pytest.mark.parametrize(("missing", "check"), [
    ("DataSourceStreamReader", lambda: check_for_spark("spark_streams.register")),
    ("DataSourceArrowWriter", check_for_sink),
])  # fmt: skip
def test_a_spark_with_a_part_of_python_sources_is_refused_by_what_it_lacks(
    missing: str, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Platforms have added Python sources to Spark 3.5."""
    check()
    monkeypatch.delattr(f"pyspark.sql.datasource.{missing}")
    with pytest.raises(UnsupportedError, match=rf"needs Spark 4.0 or newer, and this is PySpark .* has no {missing}"):
        check()
