"""Print the tables of docs/ that the code knows: `python -m tools.reference`.

A page has blocks, each between `<!-- printed: NAME -->` and `<!-- end of NAME -->`, and text around
them that is written by hand. Tests fail if a block differs from the code.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import click

from spark_streams.base.untyped import Json
from spark_streams.cli import main as rstream
from spark_streams.connector import counters, errors
from spark_streams.connector.lag import group_metrics
from spark_streams.connector.lag.group_metrics import MetricTable
from spark_streams.connector.options.option import REQUIRED, Option, documented
from spark_streams.connector.options.table import (
    ACCESS,
    BATCH_SOURCE,
    CONTRADICTIONS,
    NEEDS,
    SINK,
    SINK_GROUPS,
    SOURCE,
    SOURCE_GROUPS,
)
from spark_streams.connector.source.group import recovery
from spark_streams.connector.watch import query_metrics
from spark_streams.jobs.arguments import JOBS
from spark_streams.jobs.job import ACCESS_SHAPE
from spark_streams.jobs.job_config import FREE, Shape
from spark_streams.operations.monitor import exported_metrics as exporter_metrics
from tools import rights, server_keys
from tools.bench.peers import page as peers_page
from tools.simulation.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs"
_BLOCK = re.compile(r"(<!-- printed: ([\w-]+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)

# -------------------------------------------------------------------------------------------------------------- options

# The parser of an option (connector/options/parsers.py) and what its values are called.
TYPES = {
    "parse": "server URL",
    "text": "text",
    "count": "integer ≥ 1",
    "shards": "integer, 1 to 256",
    "flag": "`true`, `false`",
    "flag_or_auto": "`true`, `false`, `auto`",
    "streams": "names",
    "null_values": "texts",
    "location": "path",
    "function": "`module:function`",
    "duration": "duration",
    "delays": "durations",
    "entry_id": "entry ID",
    "moment": "time",
    "glob": "Redis pattern",
    "size": "bytes",
}


def _listing(rows: Iterable[str], more: str = "") -> str:
    """Return a table whose rows the site shows below each other on a narrow screen. more: another class of it."""
    return "\n".join([f'<div class="listing{more}" markdown>', "", *rows, "", "</div>"])


def type_of(option: Option) -> str:
    """Return what the values of an option are."""
    name = option.parse.__qualname__.split(".")[0]
    inner = inspect.getclosurevars(option.parse).nonlocals if inspect.isfunction(option.parse) else {}
    if name == "one_of":
        return ", ".join(f"`{value}`" for value in inner["values"])
    if name == "per_stream":
        return f"{_type_of_value(inner['parse_value'])}, or JSON of these by stream"
    return TYPES["parse" if name == "Address" else name]


def _type_of_value(parse: Callable[[str], object]) -> str:
    words = inspect.getclosurevars(parse).nonlocals.get("positions_by_word")
    return TYPES[parse.__name__] if words is None else ", ".join([*(f"`{word}`" for word in words), "an entry ID"])


def default_of(option: Option) -> str:
    """Return the default of an option, as Markdown."""
    if option.default is REQUIRED:
        return "required"
    text = str(option.default).lower() if isinstance(option.default, bool) else option.default
    return option.shown or (f"`{text}`" if isinstance(text, str | int) else "none")


def table_of(options: Iterable[Option], readers: bool = False, elsewhere: Iterable[Option] = ()) -> str:
    """Return a table of options, each with an anchor. readers: say for which of the two readers each is; elsewhere:
    options of another table, whose anchors have the plain name."""
    taken = {option.name for option in elsewhere}
    heads = ["option", *(["for"] if readers else []), "type", "default", "meaning"]
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for option in documented(options):
        anchor = f"sink-{option.name}" if option.name in taken else option.name
        reader = [option.only or "both"] if readers else []
        cells = [f'<a id="{anchor}"></a>`{option.name}`', *reader, type_of(option), default_of(option), option.doc]
        rows.append(f"| {' | '.join(cells)} |")
    return _listing(rows, " options")


def source_options() -> str:
    """Print the options of both readers, a table for each group."""
    return "\n\n".join(f"### {title}\n\n{table_of(options, True)}" for title, options in SOURCE_GROUPS.items())


def sink_options() -> str:
    """Print the options of the sink, a table for each group."""
    return "\n\n".join(
        f"### {title}\n\n{table_of(options, elsewhere=SOURCE)}" for title, options in SINK_GROUPS.items()
    )


def counts_of_options() -> str:
    """Return how many options users can set, and how many pairs of options need a check."""
    names = {option.name for option in documented((*SOURCE, *BATCH_SOURCE, *SINK))}
    return f"options: {len(names)} · contradictions: {len(CONTRADICTIONS)} · needs: {len(NEEDS)}"


# --------------------------------------------------------------------------------------------------------------- errors


def print_errors() -> str:
    """Print a heading for each error class, in the order of the tree."""
    return "\n\n".join(_error(error) for error in _below(errors.RStreamError))


def _below(error: type[errors.RStreamError]) -> Iterator[type[errors.RStreamError]]:
    yield error
    for other in error.__subclasses__():
        if other.__module__ == errors.__name__:
            yield from _below(other)


def _error(error: type[errors.RStreamError]) -> str:
    cause = inspect.cleandoc(error.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    tree = [kind.__name__ for kind in reversed(error.__mro__) if issubclass(kind, errors.RStreamError)]
    parents = " → ".join(f"`{name}`" for name in tree[1:] or tree)  # all begin with RStreamError
    return f"## {error.condition}\n\n{parents}\n\n{cause}\n\n**Remedy:** {error.remedy}"


# ------------------------------------------------------------------------------------------------------------- commands


# Options that mean the same wherever they occur: docs/reference/commands.md prints them once.
NAMED_BY_COMMANDS = ("--url", "--json", "--yes")  # each command also names those that it has, without --url
CONNECTION_OPTIONS = ("--username", "--password-file", "--credential-provider", "--reply-timeout")  # with each --url

DECODE_OPTIONS = (
    "--decode",
    "--schema",
    "--framed",
    "--schema-format",
    "--message",
    "--registry",
    "--registry-username",
    "--registry-password-file",
)  # of commands that have --decode

# The pages of commands: the end of the name of a page and its block, the commands of `rstream` in it. The last block is
# on docs/reference/commands.md itself.
COMMAND_PAGES = {
    "look": ("lag", "top", "pending", "wait", "streams", "show", "tail", "shards", "exporter", "console"),
    "where": ("where",),
    "doctor": ("doctor",),
    "groups": ("groups", "replay"),
    "entries": ("add", "trim", "copy", "export", "import"),
    "dead-letters": ("dead",),
    "jobs-and-servers": ("init", "run", "verify", "url", "serve", "help"),
}
_ON_THE_PAGE_ITSELF = "jobs-and-servers"


def print_commands(names: Iterable[str]) -> str:
    """Print these commands of `rstream` with their arguments and options. Options of several come first."""
    commands = {name: rstream.commands[name] for name in names}
    shared = _rows_of_several(commands.values())
    parts = ["Options of several commands of this page:", _table(shared)] if shared else []
    for name, command in commands.items():
        parts += _command(f"rstream {name}", command, 2, shared)
    return "\n\n".join(parts)


def print_command_pages() -> str:
    """Print links to all commands, a line for each page."""
    rows = []
    for page, names in COMMAND_PAGES.items():
        file = "" if page == _ON_THE_PAGE_ITSELF else f"commands-{page}.md"
        links = ", ".join(f"[`{name}`]({file}#rstream-{name})" for name in names)
        rows.append(f"- {page.replace('-', ' ')}: {links}")
    return "\n".join(rows)


def print_shared_options() -> str:
    """Print the options that many commands share, of a command that has all of them."""
    rows = _rows_with_access(rstream.commands["replay"])
    return _table(rows[name] for name in (*NAMED_BY_COMMANDS, *CONNECTION_OPTIONS))


def print_decode_options() -> str:
    """Print the options of commands that show decoded values."""
    rows = _rows_with_access(rstream.commands["show"])
    return _table(rows[name] for name in DECODE_OPTIONS)


def _command(path: str, command: click.Command, level: int, known: Sequence[str] = ()) -> Iterator[str]:
    """Print a command and its subcommands. known: rows of options that the text above has printed."""
    arguments = command.collect_usage_pieces(click.Context(command))[1:]  # the first one stands for the options
    has_usage = arguments and not isinstance(command, click.Group)
    usage = [f"`{path} {' '.join(arguments)}`"] if has_usage else []
    parts = [f"{'#' * min(level, 4)} {path}", *usage, *_help(command.help or "")]
    subcommands = [each for each in getattr(command, "commands", {}).values() if not each.hidden]
    if shared := _rows_of_several(subcommands):
        parts += ["Options of several subcommands:", _table(shared)]
    rows = _rows(command)
    elsewhere = (*NAMED_BY_COMMANDS, *(DECODE_OPTIONS if "--decode" in rows else ()))
    if own := [row for name, row in rows.items() if name not in elsewhere and row not in known]:
        parts.append(_table(own))
    shown = _runs([name for name, row in rows.items() if row in known], [*map(_name_in, known)])
    shown += [f"`{name}`" for name in NAMED_BY_COMMANDS[1:] if name in rows]
    if "--decode" in rows:
        shown.append("the [options of decoding](commands.md#options-of-decoding)")
    if shown:
        parts.append(f"Also {', '.join(shown)}.")
    yield "\n\n".join(parts)
    for subcommand in subcommands:
        yield from _command(f"{path} {subcommand.name}", subcommand, level + 1, shared)


def _name_in(row: str) -> str:
    return row.split("`")[1]


def _runs(names: Sequence[str], table: Sequence[str]) -> list[str]:
    """Return these options of the table above; of four or more that follow each other in it, the first and the last."""
    places = sorted(map(table.index, names))
    shown = list[str]()
    for _, follow in itertools.groupby(enumerate(places), key=lambda at: at[1] - at[0]):
        run = [f"`{table[place]}`" for _, place in follow]
        shown += run if len(run) < 4 else [f"{run[0]} … {run[-1]}"]
    return shown


def _rows(command: click.Command) -> dict[str, str]:
    """Return the rows of the options of a command by their names, without those that each --url brings."""
    return {name: row for name, row in _rows_with_access(command).items() if name not in CONNECTION_OPTIONS}


def _rows_with_access(command: click.Command) -> dict[str, str]:
    return {
        parameter.opts[0]: _row(parameter)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    }


def _rows_of_several(commands: Iterable[click.Command]) -> list[str]:
    """Return the rows that several of these commands have. The shared options are elsewhere."""
    elsewhere = (*NAMED_BY_COMMANDS, *DECODE_OPTIONS)
    counts = Counter(row for command in commands for name, row in _rows(command).items() if name not in elsewhere)
    return [row for row, count in counts.items() if count > 1]


def _table(rows: Iterable[str]) -> str:
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _row(option: click.Option) -> str:
    return f"| {_names(option)} | {_about(option)} |"


def _help(text: str) -> list[str]:
    r"""Return the paragraphs of a help text. A paragraph that begins with \b keeps its line breaks."""
    paragraphs = inspect.cleandoc(text).partition("\f")[0].split("\n\n")
    return [
        _preformatted(paragraph) if paragraph.startswith("\b") else _escaped(paragraph.replace("\n", " "))
        for paragraph in paragraphs
        if paragraph
    ]


def _preformatted(paragraph: str) -> str:
    return "```text\n" + paragraph.removeprefix("\b\n") + "\n```"


def _escaped(text: str) -> str:
    return re.sub(r"([<>*\[\]|])", r"\\\1", text)


def _names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} `{option.metavar or option.type.name.upper().removesuffix(' RANGE')}`"


def _about(option: click.Option) -> str:
    text = _escaped(" ".join((option.help or "").split()))
    default = option.default
    shown = option.show_default and isinstance(default, (str, int, float)) and not isinstance(default, bool)
    return f"{text} Default: `{default}`." if shown else text


# -------------------------------------------------------------------------------------------------------------- metrics


def metrics_of(tables: Iterable[MetricTable]) -> str:
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for table in tables:
        for family in table.families:
            name, kind = (f"{family.name}_total", "counter") if family.counts else (family.name, "gauge")
            kind = "histogram" if family.spreads else kind
            rows.append(f"| `{name}` | {kind} | {', '.join(table.labels)} | {family.help} |")
    return _listing(rows)


def log_counters() -> str:
    """Return the table of the counters of a run, as log lines name them."""
    rows = ["| field | unit | meaning |", "|---|---|---|"]
    for counter in counters.TABLE:
        meaning = counter.meaning if counter.at_zero else f"{counter.meaning} Only above zero."
        rows.append(f"| `{counter.name}` | {counter.unit} | {meaning} |")
    return _listing(rows)


# --------------------------------------------------------------------------------------------------------------- blocks


def print_keys(part: str) -> str:
    return _listing(server_keys.rows_of(part))


def mutants_of_product() -> str:
    """Return the table of mutants, and what has found them."""
    rows = ["| mutant | what it breaks | found by | failure |", "|---|---|---|---|"]
    for mutant in MUTANTS:
        note = mutant.found
        cells = ["not yet", ""] if note is None else [f"`{note.play}`", f"`{note.kind.replace('|', '·')}`"]
        rows.append(f"| `{mutant.name}` | {mutant.breaks.replace('|', '·')} | {' | '.join(cells)} |")
    number = sum(mutant.found is not None for mutant in MUTANTS)
    return "\n".join([f"{len(MUTANTS)} mutants, {number} found:", "", _listing(rows)])


# ----------------------------------------------------------------------------------------- schemas of configuration

_JSON_TYPES = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}
_OPTIONS_OF = {"source": SOURCE, "sink": SINK}  # tables of a configuration that are options


def job_schema(job: str) -> str:
    """Return the JSON Schema of a job's configuration, by which editors complete it: `#:schema` in conf/."""
    program = import_module(f"spark_streams.jobs.programs.{job}").PROGRAM
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": f"Configuration of the job {job}"}
    return json.dumps(head | _schema({**ACCESS_SHAPE, "spark": FREE, **program.shape}), indent=2) + "\n"


def _schema(shape: Shape) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    for key, one in shape.items():
        if isinstance(one, Mapping):
            properties[key] = _schema(one)
        elif one is FREE:
            names = {option.name: option.doc for option in _OPTIONS_OF.get(key, ())}
            of_table = {"properties": {name: {"description": doc} for name, doc in names.items()}} if names else {}
            properties[key] = {"type": "object", **of_table}
        else:
            kinds = [_JSON_TYPES[kind] for kind in (one if isinstance(one, tuple) else (one,))]
            properties[key] = {"type": kinds if len(kinds) > 1 else kinds[0]}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def remedies() -> str:
    """Return the table of docs/reference/data-loss.md, in Markdown."""
    columns = "| what the query finds | `true`: stops with | `false`, alone in the group | `false`, shared group |"
    lines = [
        f"| {row.kind.value} | `{row.error.condition}`. {row.short} | {row.alone} | {row.shared or 'the same'} |"
        for row in recovery.ROWS
    ]
    return "\n".join([columns, "|---|---|---|---|", *lines])


BLOCKS: dict[str, Callable[[], str]] = {
    "access-options": lambda: table_of(ACCESS),
    "source-options": source_options,
    "sink-options": sink_options,
    "remedies": remedies,
    "errors": print_errors,
    "shared-options": print_shared_options,
    "decode-options": print_decode_options,
    "commands": print_command_pages,
    **{f"commands-{page}": partial(print_commands, names) for page, names in COMMAND_PAGES.items()},
    "group-metrics": lambda: metrics_of(group_metrics.TABLES),
    "exporter-metrics": lambda: metrics_of(exporter_metrics.TABLES),
    "log-counters": log_counters,
    "query-metrics": lambda: metrics_of(query_metrics.tables()),
    "roles": rights.print_roles,
    "more-rights": rights.print_more,
    **{f"keys-{part}": partial(print_keys, part) for part in server_keys.TABLES},
    "mutants": mutants_of_product,
    "peers": peers_page.table,
}


def printed(page: str) -> str:
    """Return the text of a page with every block printed from the present code."""
    return _BLOCK.sub(lambda match: match[1] + "\n" + BLOCKS[match[2]]() + "\n\n" + match[3], page)


def blocks_in(page: str) -> list[str]:
    return [match[2] for match in _BLOCK.finditer(page)]


def main() -> int:
    """Write the pages. Print the names of the files that changed, and how many options there are."""
    texts = {page: printed(page.read_text(encoding="utf-8")) for page in sorted(PAGES.rglob("*.md"))}
    texts |= {ROOT / "conf" / f"{job}.schema.json": job_schema(job) for job in JOBS}
    texts |= {peers_page.CHART: peers_page.chart()} if peers_page.found() else {}
    for file, text in texts.items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(file)
    print(counts_of_options())
    return 0


if __name__ == "__main__":
    sys.exit(main())
