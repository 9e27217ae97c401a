"""Each word of the pages that the product must know is one that it knows: options, commands, errors, keys, exit codes.

A kind of word is a pattern, what accepts it, and a text with a wrong one. Words of other programs are listed below.
"""

from __future__ import annotations

import builtins
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from spark_streams import pytest_plugin
from spark_streams.cli import main
from spark_streams.connector import errors, keys
from spark_streams.connector.cdc import change_events
from spark_streams.connector.deadletter.envelope import FIELDS, MARK
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.lag import group_metrics
from spark_streams.connector.options.option import Option, documented
from spark_streams.connector.options.table import ACCESS, BATCH_SOURCE, SINK, SOURCE
from spark_streams.connector.source.archive import HEX
from spark_streams.connector.source.rows.columns import CORRUPT_RECORD, METADATA
from spark_streams.connector.watch import query_metrics
from spark_streams.engine.launch.commandline import _parser
from spark_streams.jobs.arguments import JOBS
from spark_streams.jobs.job import ACCESS_SHAPE
from spark_streams.jobs.job_config import FREE, Shape, check_keys
from spark_streams.operations.commands import exit_codes
from spark_streams.operations.doctor.rights import OWN
from spark_streams.operations.monitor import exported_metrics

ROOT = Path(__file__).resolve().parents[2]
# mutants.md is printed from the table of mutants.
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.stem != "mutants")]
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)

# Words of other programs that look like ours: by kind, and by the program.
_SPARKS = (
    "addListener asyncProgressTrackingEnabled availableNow checkpointLocation copyCurrentStructure dropDuplicates"
    " foreachBatch groupBy initialOffset insertInto isUserSpecifiedSchema latestOffset maxFileAge maxFilesPerTrigger"
    " maxRecordsPerPartition maxRows minExecutors=0 numRowsDroppedByWatermark prepareForTriggerAvailableNow queryName"
    " readStream recentProgress removeListener reportLatestOffset streamIteratorStart tableChanges transformWithState"
    " transformWithStateInPandas writeStream"
)
THEIRS = {
    "option": {
        "Spark": _SPARKS.replace(" minExecutors=0", ""),
        "Spark's Kafka source": "endingOffsetsByTimestamp groupIdPrefix includeHeaders maxOffsetsPerTrigger"
        " minOffsetsPerTrigger startingOffsetsByTimestamp startingOffsetsByTimestampStrategy subscribePattern",
        "Delta": "txnAppId txnVersion",
        "Kubernetes, KEDA": "activationLagCount lagCount pendingEntriesCount terminationGracePeriodSeconds",
        "Databricks": "executionTimeoutMinutes",
        "JSON Schema": "oneOf patternProperties unevaluatedProperties",
        "Nexmark": "dateTime",
    },
    "option in Python": {"Spark": "checkpointLocation"},
    "setting": {"Spark": "minExecutors=0"},
    "flag": {
        "Spark": "--full-refresh-all --packages --py-files --supervise",
        "Glue": "--additional-python-modules",
        "gcloud": "--auth-mode=iam-auth --authorization-mode=iam-auth",
    },
    "error": {
        "Java": "StackOverflowError",
        "boto3": "NoCredentialsError",
        "google-auth": "DefaultCredentialsError RefreshError",
        "pyiceberg": "CommitFailedError",
        "redis-py": "BusyLoadingError",
    },
    "key": {"scripts/run": "demo", "a secret of Kubernetes": "url"},
    "column": {
        "Python": "__repr__",
        "Spark": "__python_accumulator__",
        "an engine's PySpark": "_engine_pyspark",
    },
    "public name": {"an archive": "spark_streams.zip"},
    "key of a configuration": {"Debezium": "source.ts_ms", "the code": "job.py trim.py source.must_exist"},
    "file": {
        "others": ".pyiceberg.yaml openlineage.yml prometheus.yml redis.conf",
        "jobs": "_schema.json",
    },
    "condition or variable": {"a test": "RSTREAM_SCREENSHOTS"},
    "exit code": {"a process that has aborted": "134"},
}


class Kind(NamedTuple):
    """Words of a kind. found: in the text of a page; wrong: a text with one that the product does not accept."""

    found: Callable[[str], Iterator[str]]
    accepts: Callable[[str], bool]
    wrong: str


def spans(pattern: str) -> Callable[[str], Iterator[str]]:
    """Find code within a line that is completely such a word."""

    def found(page: str) -> Iterator[str]:
        for span in re.findall(r"`([^`\n]+)`", _FENCED.sub("", page)):
            if re.fullmatch(pattern, span):
                yield span

    return found


def anywhere(pattern: str) -> Callable[[str], Iterator[str]]:
    """Find words in text and code. Group 1 is the word."""
    return lambda page: (match[1] for match in re.finditer(pattern, page))


def blocks(*languages: str) -> Callable[[str], Iterator[str]]:
    """Find code blocks of these languages."""
    return lambda page: (match[3] for match in _FENCED.finditer(page) if match[2] in languages)


# -- options -----------------------------------------------------------------------------------------------------------


@cache
def options() -> Mapping[str, list[Option]]:
    tables = [option for table in (SOURCE, BATCH_SOURCE, SINK, ACCESS) for option in documented(table)]
    return {option.name: [one for one in tables if one.name == option.name] for option in tables}


def is_setting(setting: str) -> bool:
    """Whether an option takes the value: `name=value`."""
    name, _, value = setting.partition("=")
    for option in options().get(name, ()):
        try:
            option.parse(value)
        except ValueError:
            continue
        return True
    return False


def settings(page: str) -> Iterator[str]:
    """Find settings of options. In Python, only their names are looked at."""
    for setting in spans(r"[a-z]\w*=[^= ].*|[a-z]\w*=")(page):
        name = setting.partition("=")[0]
        if (name in options() and not setting.endswith(("=True", "=False"))) or re.search("[A-Z]", name):
            yield setting


def options_in_python(page: str) -> Iterator[str]:
    for block in blocks("python")(page):
        yield from re.findall(r'\.option\("(\w+)"', block)
        for keywords in re.findall(r"\.options\(([^)]*)\)", block):
            yield from re.findall(r"(\w+)=", keywords)


# -- commands ----------------------------------------------------------------------------------------------------------


def is_command(line: str, complete: bool = True) -> bool:
    """Whether `rstream` takes a line. If it is not complete, values and arguments may be missing."""
    words = [word for word in shlex.split(line)[1:] if word not in ("--help", "--version")]
    command: click.Command = main
    try:
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            if "list" in command.commands and words[0] not in command.commands:
                words.insert(0, "list")
            _, found, words = command.resolve_command(click.Context(command), words)
            command = found or command
        command.make_context("rstream", words)
    except (click.exceptions.NoArgsIsHelpError, click.BadOptionUsage, click.MissingParameter):
        return not complete
    except click.BadParameter:
        return not complete and re.search("[A-Z]{2}|…", line) is not None  # a word that stands for a value
    except click.UsageError:
        return False
    return True


def command_lines(page: str) -> Iterator[str]:
    """Find calls of `rstream` in blocks, without what follows in the shell. Usage lines are printed from the code."""
    for block in blocks("", "sh", "text", "ini", "yaml", "python")(page):
        for line in block.replace("\\\n", " ").splitlines():
            for call in re.finditer(r"(?:^|[ '\"/(])(rstream [a-z-].*)", line):
                words = re.split(r"\s{3,}|\s+#\s|\s+[|&;>]|;;|\)'", call[1])[0].strip()
                words = words if words.count("'") % 2 == words.count('"') % 2 == 0 else re.split(r"[\"']", words)[0]
                if " [" not in words and "." not in words[:8]:
                    yield words


@cache
def commands() -> Mapping[str, list[str]]:
    """By its last word: the commands of `rstream`."""
    found: dict[str, list[str]] = {}

    def walk(path: str, command: click.Command) -> None:
        found.setdefault(path.rpartition(" ")[2], []).append(path)
        for name, one in getattr(command, "commands", {}).items():
            walk(f"{path} {name}", one)

    walk("rstream", main)
    return found


def parts_of_commands(page: str) -> Iterator[str]:
    """Find `prune --hold`, `dead list`: a command without those before it."""
    for span in spans(r"[a-z]+ (--)?[a-z-]+( .*)?")(page):
        name, _, second = span.partition(" ")
        is_group = any(" " in path and f"rstream {name} " in path for paths in commands().values() for path in paths)
        if name in commands() and name != "rstream" and (is_group or second.startswith("--")):
            yield span


def is_part_of_command(words: str) -> bool:
    name, _, rest = words.partition(" ")
    return any(is_command(f"{path} {rest}", complete=False) for path in commands()[name])


@cache
def parameters() -> list[click.Parameter]:
    """All options and arguments of all commands."""
    found: list[click.Command] = [main]
    for command in found:
        found += getattr(command, "commands", {}).values()
    return [parameter for command in found for parameter in command.params]


@cache
def flags() -> set[str]:
    """All options of commands, of the engine, of jobs, and of the programs of the repository."""
    found = {name for parameter in parameters() for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    found |= {word.partition(" ")[0] for action in _parser("rstream serve")._actions for word in action.option_strings}
    for file in [*(ROOT / "scripts").iterdir(), *(ROOT / "tools").rglob("*.py")]:
        found |= set(re.findall(r"--[a-z-]+", file.read_text(encoding="utf-8")))
    return found


# -- names of the package ----------------------------------------------------------------------------------------------


@cache
def code() -> str:
    folders = (ROOT / "spark_streams", ROOT / "tools")
    return "\n".join(file.read_text(encoding="utf-8") for folder in folders for file in folder.rglob("*.py"))


def is_error(name: str) -> bool:
    return f"\nclass {name}(" in code() or hasattr(builtins, name)


def is_public(path: str) -> bool:
    """Whether a dotted name leads to something."""
    names = path.split(".")
    found: object = import_module(names[0])
    for number, name in enumerate(names[1:], 2):
        if not hasattr(found, name):
            try:
                import_module(".".join(names[:number]))
            except ImportError:
                return False
        found = getattr(found, name)
    return True


@cache
def conditions() -> set[str]:
    return {kind.condition for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "condition")}


def is_condition_or_variable(name: str) -> bool:
    """Whether it is an error's condition, or a variable of the environment that the code reads."""
    return name in {*conditions(), *(parameter.envvar for parameter in parameters())} or f'"{name}"' in code()


@cache
def kinds_of_keys() -> set[str]:
    kinds = set(re.findall(r'key_(?:beside|of_query)\((?:[^()]|\([^()]*\))*?"(\w+)"', code()))
    kinds |= set(re.findall(r'f?"rstream:([a-z]+)[:"]', Path(keys.__file__).read_text(encoding="utf-8")))
    made = [*keys.keys_of_consumer("orders", "etl", "spark"), *keys.keys_of_group("orders", "etl", 1)]
    return kinds | {kind for kind, _ in made} | {name.partition(":")[2] for name in (OWN, HEX)}


@cache
def metrics() -> set[str]:
    tables = (*group_metrics.TABLES, *exported_metrics.TABLES, *query_metrics.tables())
    names = {family.name for table in tables for family in table.families}
    return names | {f"{name}_total" for name in names} | set(vars(pytest_plugin))  # and fixtures


@cache
def shapes() -> list[Shape]:
    programs = [import_module(f"spark_streams.jobs.programs.{job}").PROGRAM for job in JOBS]
    return [{**ACCESS_SHAPE, "spark": FREE, **program.shape} for program in programs]


def is_configuration(block: str) -> bool:
    """Whether a block is (a part of) the configuration of a job. `…` stands for what is left out."""
    for shape in shapes():
        try:
            check_keys(tomllib.loads(block.replace("…", "")), shape, "", "")
        except (ConfigError, tomllib.TOMLDecodeError):
            continue
        return True
    return block.startswith("upstreams = ")  # of oauth2-proxy


def is_configuration_key(key: str) -> bool:
    return any(_leads_to(shape, key.split(".")) for shape in shapes())


def _leads_to(shape: object, names: list[str]) -> bool:
    if not names or shape is FREE:
        return not names or names[0] in options()
    return isinstance(shape, Mapping) and names[0] in shape and _leads_to(shape[names[0]], names[1:])


@cache
def files() -> set[str]:
    """All ends of paths of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    parts = [path.split("/") for path in listed]
    ends = {"/".join(path[start:]) for path in parts for start in range(len(path))}
    return ends | {path.removesuffix(".sh") for path in listed if path.startswith("scripts/")}


CODES = {str(code) for name, code in vars(exit_codes).items() if name.isupper() and isinstance(code, int)} | {"0"}
COLUMNS = METADATA | {CORRUPT_RECORD, *change_events._ADDED, "_to"}  # _to: of route_dead_letters
DEAD_LETTER_FIELDS = {field.decode() for field in (*FIELDS, MARK)}

KINDS = {
    "option": Kind(spans("[a-z]+[A-Z][A-Za-z]*"), lambda word: word in options(), "`onLoss`"),
    "option in Python": Kind(
        options_in_python, lambda word: word in options(), '```python\nreader.option("onLoss", 1)\n```'
    ),
    "setting": Kind(settings, is_setting, "`onNewCheckpoint=fail`"),
    "command line": Kind(command_lines, is_command, "```sh\nrstream lag orders --most 5\n```"),
    "command": Kind(
        spans("rstream [^\n]+"), lambda line: is_command(line, complete=False), "`rstream dead send orders:dead`"
    ),
    "part of a command": Kind(parts_of_commands, is_part_of_command, "`prune --keep`"),
    "flag": Kind(spans("--[a-z-]+.*"), lambda text: re.split("[ =]", text)[0] in flags(), "`--most 5`"),
    "error": Kind(anywhere(r"\b([A-Z]\w+Error)\b"), is_error, "GroupLostError"),
    "condition or variable": Kind(anywhere(r"\b(RSTREAM_[A-Z_]+[A-Z])\b"), is_condition_or_variable, "RSTREAM_GONE"),
    "key": Kind(anywhere(r"(?<![\w/.])rstream:([a-z]+)"), lambda kind: kind in kinds_of_keys(), "rstream:gone:x"),
    "metric": Kind(anywhere(r"\b(rstream_[a-z_]+)\b"), lambda name: name in metrics(), "rstream_gone"),
    "column": Kind(spans("_[a-z_]+"), lambda name: name in COLUMNS, "`_gone`"),
    "field of a dead letter": Kind(anywhere(r"\b(dl\.[a-z-]+)"), lambda name: name in DEAD_LETTER_FIELDS, "dl.gone"),
    "public name": Kind(anywhere(r"\b(spark_streams(?:\.[a-z_]+)+)\b"), is_public, "spark_streams.gone"),
    "configuration": Kind(blocks("toml"), is_configuration, "```toml\n[source]\n[gone]\n```"),
    "key of a configuration": Kind(
        spans(r"(?:job|source|sink|trim|redrive|input|output|table|validate)\.\w+"), is_configuration_key, "`job.gone`"
    ),
    "file": Kind(
        spans(r"[\w/.-]+\.(?:py|toml|md|json|ya?ml|sh|txt|conf|env)"), lambda path: path in files(), "`gone.py`"
    ),
    "program": Kind(
        anywhere(r"(?<![\w/])(scripts/\w+|jobs/\w+\.py)"), lambda path: path in files(), "`scripts/gone`"
    ),
    "exit code": Kind(
        anywhere(r"(?i)(?:exit code|ends? with code|ends? with exit code|exits with code)s? (?:is |are )?(\d+)"),
        lambda code: code in CODES, "with exit code 7",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing `--html FILE` opens the file."""
    monkeypatch.chdir(tmp_path)


def unknown(kind: str, page: str) -> list[str]:
    return [word for word in KINDS[kind].found(page) if not KINDS[kind].accepts(word)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_product_knows_each_word_of_the_pages(kind: str) -> None:
    wrong = {page.stem: unknown(kind, page.read_text(encoding="utf-8")) for page in PAGES}
    theirs = {word for words in THEIRS.get(kind, {}).values() for word in words.split()}
    assert {name: sorted(set(words) - theirs) for name, words in wrong.items() if set(words) - theirs} == {}
    assert theirs - {word for words in wrong.values() for word in words} == set(), "no page has them any more"


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_that_the_product_does_not_know_is_found(kind: str) -> None:
    assert len(unknown(kind, f"# A page\n\n{KINDS[kind].wrong}\n")) == 1


# What several pages need, one page says; the others link to it. Pattern of the text, the pages that may have it, and a
# text that another page may not have. Lines of a schedule and a program of its own have their codes beside them.
ONE_PAGE = {
    "exit codes": (
        r"(?i)exit codes? (?:is |are |means )?\d|(?:exits|ends) with code \d",
        {"reference/commands", "guide/on-a-schedule", "guide/nexmark"},
        "The exit code is 3 if a group is missing.",
    ),
    "rules of a redrive": (
        r"(?i)back only|\(`refused`\)",
        {"guide/dead-letters"},
        "A redrive sends it back only to its stream.",
    ),
    "how long a query waits for a server": (
        r"(?i)(?:wait|fail|away|unreachable|after)[^.|:]{0,60}\b(?:one|a)\b(?:\]\([^)]*\))? minute\b",
        {"reference/guarantees", "guide/schemas"},
        "The query waits for one minute.",
    ),
    "logins": (
        r"(?i)(?:two|both) at once are refused|password or token|every five seconds|token has expired",
        {"guide/security"},
        "Connections look every five seconds for another password.",
    ),
    "two queries that meet": (
        r"(?i)another `?(?:group|consumer)`? (?:for|to)\b|another `(?:group|consumer)`|two groups\b(?!, or)",
        {"guide/change-a-group"},
        "Set another `consumer` to share the entries.",
    ),
}
PRINTED = re.compile(r"<!-- printed: ([\w-]+) -->.*?<!-- end of \1 -->", re.DOTALL)


@cache
def texts() -> Mapping[str, str]:
    """The text of each page, without what is printed from the code."""
    names = {str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/"): page for page in PAGES}
    return {name: PRINTED.sub("", page.read_text(encoding="utf-8")) for name, page in names.items()}


@pytest.mark.parametrize("fact", ONE_PAGE)
def test_a_fact_has_one_page(fact: str) -> None:
    pattern, owners, planted = ONE_PAGE[fact]
    pages = [name for name in texts() if name != "internals/facts"]
    found = {name for name in pages if re.search(pattern, " ".join(texts()[name].split()))}
    assert found == owners, "say it there, and link to it"
    assert re.search(pattern, planted)


# Words of the product that a page explains where they first stand, or links: pattern of the word, and of what explains.
_NO_ACK = "without a pending list|no pending list|(?:#noAck|#choose-how-to-read|#read-faster|glossary.md)\\)"
EXPLAINED = {
    "noAck": ("noAck", _NO_ACK),
    "released": (r"(?i)\breleased\]?\S* (?:entr|or )|`released`", r"XNACK|glossary\.md|gave back"),
    "margin": (r"\bmargin\b", r"time until|trimming removes|glossary\.md|monitoring\.md|#margin"),
    "origin": (r"\borigins?\b", r"\*origin\*|glossary\.md|`dl\.stream`|from which the dead letters come"),
    "closed": (r"\bclosed\b[^.|]{0,9}\b(?:batch|one)\b", r"glossary\.md"),
    "death": (r"\bdeaths?\b", r"glossary\.md"),
}
SKIPPED = ("internals", "README", "reference/glossary")


def first_with(word: str, page: str) -> str:
    """Return the paragraph, item or row of a page that has the word first. Code blocks are not looked at."""
    parts = re.split(r"\n\s*\n|\n(?=- |\||\d+\. )", _FENCED.sub("", page))
    return next((part for part in parts if re.search(EXPLAINED[word][0], part) and not part.startswith("#")), "")


@pytest.mark.parametrize("word", EXPLAINED)
def test_a_word_is_explained_where_it_first_stands_on_a_page(word: str) -> None:
    firsts = {name: first_with(word, text) for name, text in texts().items() if not name.startswith(SKIPPED)}
    explains = EXPLAINED[word][1]
    assert {name: first for name, first in firsts.items() if first and not re.search(explains, first)} == {}


def test_a_word_that_is_not_explained_is_found() -> None:
    planted = {"noAck": "It needs `noAck`.", "released": "Released entries stay.", "origin": "An origin."}
    for word, text in planted.items():
        first = first_with(word, f"# Page\n\nText.\n\n{text}\n")
        assert first
        assert not re.search(EXPLAINED[word][1], first)
