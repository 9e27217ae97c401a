"""Programs from Maven Central that `scripts/bench peers` measures: `python -m tools.servers.jars [NAME…]` fetches them.

Each has a folder `.servers/NAME` of the clone, which git ignores: `jars/` as Maven has resolved them, and `classes/` of
a program of this repository that needs them. Nothing else in the clone uses them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".servers"
HELP = "mvn is missing: install Maven and a JDK (Debian, Ubuntu: sudo apt-get install maven)"
_SPARK = "4.2.0"  # the newest with a Kafka connector; scripts/_setup.sh has it, too
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_FLINK = "2.3.0"


class NotThereError(RuntimeError):
    """Why a program cannot be had."""


# GROUP:ARTIFACT:VERSION of each program.
ARTIFACTS = {
    "kafka": ["org.apache.kafka:kafka_2.13:4.1.1"],
    "spark-kafka": [f"org.apache.spark:{name}_2.13:{_SPARK}" for name in ("spark-sql-kafka-0-10", "spark-avro")],
    "spark-redis": ["com.redislabs:spark-redis_2.12:3.0.0"],
    "flink": [
        *(f"org.apache.flink:flink-{name}:{_FLINK}" for name in (
            "clients", "table-planner-loader", "table-runtime", "table-api-java-bridge", "connector-files",
            "connector-datagen", "json", "sql-parquet")),
        "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2",
        *(f"org.apache.hadoop:hadoop-client-{name}:3.4.1" for name in ("api", "runtime")),
    ],
}  # fmt: skip
# Groups of jars that a Spark has itself.
_OF_SPARK = ("org.apache.hadoop", "org.scala-lang", "org.scala-lang.modules", "org.slf4j")
_FLINK_SQL = ROOT / "tools" / "bench" / "peers" / "FlinkSql.java"


def fetched(name: str) -> list[Path]:
    """Return the class path of a program: its jars, and the folder with the classes of this repository. Raises
    NotThereError."""
    folder = HOME / name
    pom, done = folder / "pom.xml", folder / "done"
    made = _pom(name) + (_FLINK_SQL.read_text() if name == "flink" else "")
    if not done.is_file() or done.read_text() != made:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "classes").mkdir(parents=True)
        pom.write_text(_pom(name))
        copy_jars(pom, folder / "jars")
        if name == "flink":
            fetch("javac", "-d", folder / "classes", "-cp", f"{folder / 'jars'}/*", _FLINK_SQL)
        done.write_text(made)
    return [*sorted((folder / "jars").glob("*.jar")), folder / "classes"]


def java(name: str, *options: str) -> list[str]:
    """Return the beginning of a command that runs a class of a program."""
    return ["java", *options, "-cp", ":".join(map(str, fetched(name)))]


def copy_jars(pom: Path, folder: Path) -> None:
    """Put what a pom.xml depends on into a folder. Raises NotThereError."""
    fetch("mvn", "-q", "-B", "-f", pom, _PLUGIN, f"-DoutputDirectory={folder}", "-DincludeScope=runtime")


def fetch(*command: object, cwd: Path | None = None) -> None:
    """Run a tool that fetches or compiles something. Raises NotThereError, also if the tool is missing."""
    try:
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=cwd)
    except FileNotFoundError:
        raise NotThereError(HELP if command[0] == "mvn" else f"{command[0]} is missing") from None
    if ran.returncode:
        raise NotThereError(f"{command[0]} failed:\n{(ran.stdout + ran.stderr)[-2000:]}")


def _pom(name: str) -> str:
    """Return a project that depends on the artifacts."""
    groups = _OF_SPARK if name.startswith("spark") else ()
    left_out = "".join(f"<exclusion><groupId>{one}</groupId><artifactId>*</artifactId></exclusion>" for one in groups)
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>".format(*one.split(":"))
        + f"<exclusions>{left_out}</exclusions></dependency>\n"
        for one in ARTIFACTS[name]
    )
    return (
        f"<project><modelVersion>4.0.0</modelVersion><groupId>peers</groupId><artifactId>{name}</artifactId>"
        f"<version>1</version><packaging>pom</packaging>\n<dependencies>\n{dependencies}</dependencies></project>\n"
    )


def main(names: list[str]) -> int:
    """Fetch the programs (default: all). Return the exit code."""
    try:
        for name in names or ARTIFACTS:
            if name not in ARTIFACTS:
                raise NotThereError(f"there is no {name}: there are {', '.join(ARTIFACTS)}")
            print(f"{name:12} {len(fetched(name)) - 1} jars in {(HOME / name).relative_to(ROOT)}", flush=True)
    except NotThereError as error:
        print(f"scripts/servers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
