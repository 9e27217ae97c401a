"""`rstream help`: the pages of the guide and the reference, without a network. The package holds them as Markdown."""

from __future__ import annotations

import difflib
import re
from importlib.resources import files

import click

_PARTS = ("guide", "reference")  # folders of pages. Of a name that is in both, the first one needs no folder


def topics() -> dict[str, tuple[str, str]]:
    """Return folder and file of each topic: `trim`, and `reference/jobs` beside `jobs`."""
    found: dict[str, tuple[str, str]] = {}
    for part in _PARTS:
        folder = files("spark_streams") / "pages" / part
        for file in sorted(file.name for file in folder.iterdir() if file.name.endswith(".md")):
            name = file.removesuffix(".md")
            found[f"{part}/{name}" if name in found else name] = (part, file)
    return found


def page(topic: str) -> str:
    """Return the text of a page. Raises KeyError if there is no such topic."""
    part, file = topics()[topic]
    text = (files("spark_streams") / "pages" / part / file).read_text(encoding="utf-8")
    without_settings = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    return re.sub(r"^<!--.*?-->\n+", "", without_settings, flags=re.DOTALL | re.MULTILINE).lstrip()


@click.command("help", short_help="Show a page of the documentation.")
@click.argument("topic", required=False)
def show_help(topic: str | None) -> None:
    """Show a page of the guide or of the reference, without a network. Without TOPIC: list the topics.

    Messages name topics. For the options of a command run rstream COMMAND --help.

    \b
    Examples:
      rstream help
      rstream help troubleshooting
      rstream help access
    """
    known = topics()
    if topic is None:
        width = max(map(len, known))
        click.echo("\n".join(f"{name:<{width}}  {_title(name)}" for name in sorted(known)))
    elif topic in known:
        click.echo_via_pager(page(topic))
    else:
        raise click.UsageError(f"there is no topic {topic!r}. {_proposal(topic, known)}")


def _title(topic: str) -> str:
    return page(topic).split("\n", 1)[0].removeprefix("# ")


def _proposal(topic: str, known: dict[str, tuple[str, str]]) -> str:
    """Return what to run instead."""
    group = click.get_current_context().find_root().command
    if isinstance(group, click.Group) and topic in group.commands:
        return f"For the command of this name run rstream {topic} --help"
    near = difflib.get_close_matches(topic, known, 1)
    return f"Did you mean rstream help {near[0]}?" if near else "To list all topics run rstream help"
