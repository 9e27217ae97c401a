"""Hooks of MkDocs for the pages of docs/ (mkdocs.yml, `hooks`).

The search is for users, so it has no page of internals/.

Pages are written for GitHub, too: a link may lead to a file of the repository that is no page, and drawings are files.
On the site such a link leads to GitHub. Drawings are inlined, so that their lines have the colour of the text. In code
within a table GitHub wants `\\|` for a bar, and MkDocs shows the backslash.

`llms.txt` of the site lists its pages for programs that read: title, address and first sentence, by section.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

SOURCES = "https://github.com/spark-streams/spark-streams"
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)([^)\s]*\))")
_DRAWING = re.compile(r'<p><img alt="([^"]*)" src="([^"]+\.svg)"\s*/?></p>')
_TAG = re.compile(r"<(?:script|link|img|iframe|source|video|audio|object|embed|use)\b[^>]*>", re.IGNORECASE)
_NO_ASSET = re.compile(r"\brel=[\"']?(?:canonical|next|prev|alternate)\b")
_ADDRESS = re.compile(r"""\b(?:src|href|data|srcset)=["']?((?:https?:)?//[^"'\s>]+)""")
_IN_CSS = re.compile(r"""(?:url\(|@import\s)\s*["']?((?:https?:)?//[^"')\s]+)""")
_MARK = "<!-- inlined -->"  # in the drawings that the hook may inline
_menu: list[Any] = []  # pages of the menu, in its order


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Make links to files outside docs/ absolute, and leave the internals out of the search."""
    if page.file.src_uri.startswith("internals/"):
        page.meta["search"] = {"exclude": True}
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def outside(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        if not os.path.exists(target):
            raise FileNotFoundError(f"{page.file.src_uri}: {link[2]} leads to no file of the repository")
        kind = "tree" if os.path.isdir(target) else "blob"
        return f"{link[1]}{SOURCES}/{kind}/main/{target}{link[3]}"

    return bars_in_code(_LINK.sub(outside, markdown))


def bars_in_code(markdown: str) -> str:
    """Return a page whose code within tables has bars as MkDocs takes them."""
    rows = re.compile(r"^\|.*$", re.MULTILINE)
    return rows.sub(lambda row: re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Inline the drawings that have the mark."""
    folder = Path(config.docs_dir, page.file.src_uri).parent

    def drawn(drawing: re.Match[str]) -> str:
        text = (folder / drawing[2]).resolve().read_text(encoding="utf-8")
        return f'<div class="diagram">{text.replace(_MARK, "")}</div>' if _MARK in text else drawing[0]

    return _DRAWING.sub(drawn, html)


def on_nav(nav: Any, config: Any, files: Any) -> None:
    """Keep the menu for llms.txt."""
    _menu[:] = nav.pages


def list_of_pages(config: Any) -> str:
    """Return llms.txt."""
    lines, section = [f"# {config.site_name}", "", f"> {config.site_description}"], None
    for page in _menu:
        top = page.ancestors[-1].title if page.ancestors else "Begin"
        if top != section:
            lines += ["", f"## {top}", ""]
            section = top
        lines.append(f"- [{page.title}]({page.canonical_url}): {first_sentence(page.markdown)}".removesuffix(": "))
    return "\n".join(lines) + "\n"


def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page, without links; empty if it begins with a table or an example."""
    text = re.sub(r"<!--.*?-->", "", markdown, flags=re.DOTALL)
    paragraphs = [one.strip() for one in re.split(r"\n\s*\n", text) if one.strip() and not one.lstrip().startswith("#")]
    first = paragraphs[0] if paragraphs else ""
    if first.startswith(("|", "`" * 3, "<", "!", "-", ":::")):
        return ""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=\.)\s", plain)[0].rstrip(":")


def on_post_build(config: Any) -> None:
    """Write llms.txt, and refuse a site that loads assets from other hosts."""
    Path(config.site_dir, "llms.txt").write_text(list_of_pages(config), encoding="utf-8")
    assets = [
        f"{file.relative_to(config.site_dir)}: {address}"
        for file in sorted(Path(config.site_dir).rglob("*"))
        if file.suffix in (".html", ".css")
        for address in external_assets(file.read_text(encoding="utf-8"))
    ]
    if assets:
        raise ValueError("the site names assets of other hosts: " + ", ".join(assets))


def external_assets(text: str) -> list[str]:
    """Return the scripts, styles, fonts, images and frames of other hosts that HTML or CSS names; links are none."""
    tags = [tag for tag in _TAG.findall(text) if not _NO_ASSET.search(tag)]
    return [*(address for tag in tags for address in _ADDRESS.findall(tag)), *_IN_CSS.findall(text)]
