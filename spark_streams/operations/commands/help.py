"""`rstream help`: the pages of the guide and the reference, without a network. The package holds them as Markdown."""

from __future__ import annotations

import difflib
import re
from importlib.resources import files

import click

_PARTS = ("guide", "reference")  # folders of pages. Of a name that is in both, the first one needs no folder
_ANCHOR = re.compile(r'<a id="[\w-]+"></a>')


def topics() -> dict[str, tuple[str, str]]:
    """Return folder and file of each topic: `trim`, and `reference/jobs` beside `jobs`."""
    found: dict[str, tuple[str, str]] = {}
    for part in _PARTS:
        folder = files("spark_streams.operations") / "pages" / part
        for file in sorted(file.name for file in folder.iterdir() if file.name.endswith(".md")):
            name = file.removesuffix(".md")
            found[f"{part}/{name}" if name in found else name] = (part, file)
    return found


def page(topic: str) -> str:
    """Return the text of a page, without anchors. Raises KeyError if there is no such topic."""
    return _ANCHOR.sub("", _text(topic))


def _text(topic: str) -> str:
    part, file = topics()[topic]
    text = (files("spark_streams.operations") / "pages" / part / file).read_text(encoding="utf-8")
    without_settings = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    return re.sub(r"^<!--.*?-->\n+", "", without_settings, flags=re.DOTALL | re.MULTILINE).lstrip()


def entry(topic: str, name: str) -> str | None:
    """Return what the tables of a page say about a name, such as an option; None if no table has it.

    A row begins with an anchor, which is the name, or for a second table the name behind `sink-`.
    """
    parts: list[str] = []
    heads: list[str] = []
    before: list[str] = []
    for line in _text(topic).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and re.fullmatch("-+", cells[0]):
            heads = before
        elif cells and re.search(rf'<a id="(sink-)?{re.escape(name)}"></a>', cells[0], re.IGNORECASE):
            about = zip(heads[1:], cells[1:], strict=True)
            parts.append("\n".join([_plain(cells[0]), *(f"  {head}: {_plain(cell)}" for head, cell in about)]))
        before = cells
    return "\n\n".join(parts) or None


def _plain(cell: str) -> str:
    return _ANCHOR.sub("", cell).replace("`", "")


@click.command("help", short_help="Show a page of the documentation.")
@click.argument("topic", required=False)
def show_help(topic: str | None) -> None:
    """Show a page of the guide or of the reference, without a network. Without TOPIC: list the topics. With
    options#NAME: show one option.

    \b
    Examples:
      rstream help troubleshooting
      rstream help options#startingOffsets
    """
    known = topics()
    if topic is None:
        width = max(map(len, known))
        click.echo("\n".join(f"{name:<{width}}  {_title(name)}" for name in sorted(known)))
        return
    topic, _, name = topic.partition("#")
    if topic not in known:
        raise click.UsageError(f"there is no topic {topic!r}. {_proposal(topic, known)}")
    found = entry(topic, name) if name else page(topic)
    if found is None:
        raise click.UsageError(f"topic {topic!r} has no entry {name!r}. To read the topic run rstream help {topic}")
    click.echo_via_pager(found)


def _title(topic: str) -> str:
    return page(topic).split("\n", 1)[0].removeprefix("# ")


def _proposal(topic: str, known: dict[str, tuple[str, str]]) -> str:
    """Return what to run instead."""
    group = click.get_current_context().find_root().command
    if isinstance(group, click.Group) and topic in group.commands:
        return f"For the command of this name run rstream {topic} --help"
    near = difflib.get_close_matches(topic, known, 1)
    return f"Did you mean rstream help {near[0]}?" if near else "To list all topics run rstream help"
