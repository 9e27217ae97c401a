"""The report as one HTML page, which loads nothing. Every text in it is escaped."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template

from spark_streams.base.printable import printable
from spark_streams.operations.verify.result import Result


def page(result: Result) -> str:
    """Return the page."""
    tiles = [
        f"<div{' class=bad' if count else ''}><b>{count:,}</b><span>{_text(name)}</span></div>"
        for name, count in result.counts.items()
    ]
    sections = [
        f"<h2>{_text(title[:1].upper() + title[1:])}</h2>\n<dl>"
        + "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in texts.items())
        + "</dl>"
        for title, texts in result.titled().items()
    ]
    kind, sentence = result.verdict.replace(" ", "-"), _text(result.sentence)
    template = Template((files("spark_streams.operations.verify") / "page.html").read_text(encoding="utf-8"))
    return template.substitute(kind=kind, sentence=sentence, tiles="".join(tiles), sections="\n".join(sections))


def _text(text: str) -> str:
    return escape(printable(text))
