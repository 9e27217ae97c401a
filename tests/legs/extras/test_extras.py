"""Each extra alone in a fresh environment: the wheel with this extra, nothing else that pip could bring, and the use
that the docs name. Spark stands beside it, as it does on a cluster, where the extra does not bring it.

Run by `scripts/test --extras`. What an environment lacks is found here, and not by the tests of the clone, whose
environment has everything.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset
import pytest

from tests.legs.recipes.test_programs import PROGRAMS
from tests.project.test_build import Built, built
from tools.servers.server import Server, free_port, running_engine, running_redis, skip_without_redis

__all__ = ["built"]

ROOT = Path(__file__).resolve().parents[3]
USES = Path(__file__).with_name("uses")
CONSTRAINTS = ROOT / "constraints.txt"
LOGINS = ROOT / "examples" / "identity"
RECIPES = ROOT / "examples" / "recipes"
JAVA = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ALONE = (
    "cluster",
    "spark",
    "demo",
    "monitor",
    "lineage",
    "console",
    "connect",
    "delta",
    "iceberg",
    "recipes",
    "schemas",
    "aws",
    "azure",
    "gcp",
)

Fresh = Callable[..., "Environment"]


class Environment:
    """A Python with the wheel and one extra; runs programs with nothing of this process' environment that matters."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.python = folder / "env" / "bin" / "python"
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "HOME", "LANG") if name in os.environ}
        self.variables = kept | {
            "PATH": f"{self.python.parent}:/usr/bin:/bin", "PYSPARK_PYTHON": str(self.python),
            "SPARK_LOCAL_IP": "127.0.0.1", "XDG_RUNTIME_DIR": str(folder), "RSTREAM_URL": server.url,
        }  # fmt: skip

    def run(self, *words: object, path: Path | None = None, **variables: str) -> str:
        """What a command prints; it must succeed. path: of modules."""
        added = {"PYTHONPATH": str(path)} if path else {}
        ended = subprocess.run(
            [str(word) for word in words], cwd=self.folder, env=self.variables | added | variables,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=500,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout[-4000:]
        return ended.stdout

    def use(self, name: str, path: Path | None = None, **variables: str) -> str:
        return self.run(self.python, USES / f"with_{name}.py", path=path, **variables)


def pip(python: Path, *words: object, pinned: bool = True) -> None:
    """pinned: to the versions of constraints.txt."""
    constraint = ["--constraint", str(CONSTRAINTS)] if pinned else []
    command = [str(python), "-m", "pip", "install", "--quiet", *constraint, *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=580)
    assert ended.returncode == 0, ended.stderr[-4000:]


def packages(python: Path) -> Path:
    return next((python.parents[1] / "lib").glob("python*/site-packages"))


@pytest.fixture(scope="module")
def spark_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark is, with what it stands on and without what it may use: as on a cluster."""
    folder = tmp_path_factory.mktemp("spark")
    venv.create(folder, with_pip=True)
    pip(folder / "bin" / "python", "--no-deps", "pyspark", "py4j")
    return packages(folder / "bin" / "python")


@pytest.fixture
def fresh(built: Built, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fresh]:
    with running_engine() as server:

        def make(extra: str, with_spark: bool = False, pinned: bool = True) -> Environment:
            made = Environment(tmp_path, server)
            venv.create(tmp_path / "env", with_pip=True)
            name = f"spark-streams[{extra}]" if extra else "spark-streams"
            pip(made.python, f"{name} @ file://{built.wheel}", pinned=pinned)
            if with_spark:
                (packages(made.python) / "spark.pth").write_text(f"{request.getfixturevalue('spark_alone')}\n")
            return made

        yield make


def test_each_extra_has_a_test() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == {*ALONE, "dev", "docs"}, "docs: scripts/docs"


@pytest.mark.extras
def test_the_base_is_small(fresh: Fresh) -> None:
    """Commands, dead letters and the engine of a consumer without Spark."""
    made = fresh("")
    assert made.use("base").splitlines()[-1] == "dead: 1"
    there = {file.name for file in packages(made.python).iterdir()}
    assert not there & {"numpy", "pyarrow", "pandas", "pyspark", "jinja2", "xxhash"}


@pytest.mark.extras
def test_cluster(fresh: Fresh) -> None:
    made = fresh("cluster", with_spark=True)
    made.run(made.python, "-m", "spark_streams")
    assert "billed: [('ann', 7)]" in made.use("spark")


@pytest.mark.extras
def test_spark(fresh: Fresh) -> None:
    made = fresh("spark")
    made.run(made.python, "-m", "spark_streams")
    assert "billed: [('ann', 7)]" in made.use("spark")


@pytest.mark.extras
def test_connect(fresh: Fresh) -> None:
    made = fresh("connect")
    made.run(made.python, "-m", "spark_streams")
    assert "billed: [('ann', 7)]" in made.use("connect")


@pytest.mark.extras
def test_monitor(fresh: Fresh) -> None:
    page = fresh("monitor").use("monitor", USE_PORT=str(free_port()))
    assert 'group="billing"' in page


@pytest.mark.extras
def test_lineage(fresh: Fresh) -> None:
    assert "events: ['START', 'RUNNING', 'COMPLETE']" in fresh("lineage", with_spark=True).use("lineage")


@pytest.mark.extras
def test_console(fresh: Fresh) -> None:
    assert "Streams at" in fresh("console").use("console")


@pytest.mark.extras
def test_demo(fresh: Fresh) -> None:
    """Its data is where the demo looks for it, whole."""
    made = fresh("demo", with_spark=True)
    said = made.run(made.python, ROOT / "examples" / "flights" / "demo.py", "--help")
    assert "336,776" in said
    program = "from examples.flights.demo import *; os.chdir(sys.argv[1]); unpack(flights_folder() / 'flights.csv.zip')"
    made.run(made.python, "-c", program, made.folder, path=ROOT)
    assert len((made.folder / "out" / "flights.csv").read_text().splitlines()) == 336_777


JOB = """
[source]
streams = "orders"
group = "etl"
startingOffsets = "earliest"
[columns]
customer = "STRING"
amount = "INT"
[dead_letters]
stream = "orders:dead"
[table]
{table}
[job]
checkpoint = "{folder}/checkpoint"
"""


def run_etl(made: Environment, table: str) -> None:
    """What `--check` passes is what the run needs. table: keys of [table]."""
    rstream = made.python.with_name("rstream")
    (made.folder / "etl.toml").write_text(JOB.format(folder=made.folder, table=table))
    made.run(rstream, "add", "orders", "customer=ann", "amount=7")
    words = ("run", "etl", "--config", "etl.toml", "--set", f"spark.{JAVA}")
    made.run(rstream, *words, "--check")
    made.run(rstream, *words)


@pytest.mark.extras
def test_delta(fresh: Fresh) -> None:
    made = fresh("delta", with_spark=True)
    run_etl(made, f'format = "deltalake"\npath = "{made.folder}/orders"')
    said = made.run(made.python, "-c", "from delta_table import *; print(rows_in('orders'))", path=RECIPES)
    assert "'customer': 'ann', 'amount': 7" in said
    assert pyarrow.dataset.dataset(made.folder / "orders", exclude_invalid_files=True).count_rows() == 1


READ_ICEBERG = """
from pyiceberg.catalog import load_catalog

print(load_catalog("lake", type="sql", uri="sqlite:///catalog.db").load_table("shop.orders").scan().to_arrow().to_pylist())
"""


@pytest.mark.extras
def test_iceberg(fresh: Fresh) -> None:
    made = fresh("iceberg", with_spark=True)
    options = f'{{type = "sql", uri = "sqlite:///{made.folder}/catalog.db", warehouse = "file://{made.folder}"}}'
    run_etl(made, f'format = "pyiceberg"\ncatalog = "lake"\nname = "shop.orders"\noptions = {options}')
    assert made.run(made.python, "-c", READ_ICEBERG) == "[{'customer': 'ann', 'amount': 7}]\n"


@pytest.mark.extras
def test_recipes(fresh: Fresh) -> None:
    made = fresh("recipes", with_spark=True)
    for name, (words, _) in PROGRAMS.items():
        shown = made.run(made.python, RECIPES / f"{name}.py")
        assert [word for word in words if word not in shown] == [], (name, shown)


@pytest.mark.extras
def test_schemas(fresh: Fresh) -> None:
    """All three formats, in tasks of Spark, without pandas."""
    made = fresh("schemas", with_spark=True)
    assert "decoded: [('avro', 7), ('json', 7), ('protobuf', 7)]" in made.use("schemas")
    assert not {file.name for file in packages(made.python).iterdir()} & {"pandas"}


@pytest.mark.extras
@pytest.mark.parametrize(
    ("cloud", "login"),
    [("aws", "login: app mine/ True"), ("azure", "login: app True"), ("gcp", "login: default of-the-account")],
)
def test_a_cloud(fresh: Fresh, cloud: str, login: str) -> None:
    """With what pip brings a user: constraints.txt pins no cloud's packages, and its python-dateutil fits no boto3."""
    assert login in fresh(cloud, pinned=False).use(cloud, path=LOGINS)


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["engine", "redis"])
@pytest.mark.parametrize(
    ("name", "package", "output"),
    [
        ("taskiq", "taskiq-redis", "results: [3, 7] pending: 0"),
        ("faststream", "faststream[redis]", "billed: 2 pending: 0"),
    ],
)
def test_a_library_that_works_with_streams(tmp_path: Path, kind: str, name: str, package: str, output: str) -> None:
    """The engine is a server for the tests of its users, too. Their locks are those of redis-py."""
    if kind == "redis":
        skip_without_redis()
    with running_engine() if kind == "engine" else running_redis() as server:
        made = Environment(tmp_path, server)
        venv.create(tmp_path / "env", with_pip=True)
        pip(made.python, package, pinned=False)
        assert output in made.use(name)
