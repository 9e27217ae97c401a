"""The docs say what the code says, and name nothing that is not there."""

import re
import shlex
import subprocess
import textwrap
from functools import cache
from pathlib import Path

import pytest
from click import Command, Group

import spark_streams
from spark_streams.cli import main
from spark_streams.connector import errors, keys
from spark_streams.connector.wire.address import Address
from spark_streams.engine.commands import COMMANDS
from spark_streams.jobs.arguments import JOBS
from spark_streams.jobs.sample_config import CONF, sample_config
from tools import reference
from tools.site_hooks import bars_in_code, external_assets, first_sentence

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGE_NAME = re.compile(r"\bdocs/[\w/-]+\.md\b")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page: its own, and those that GitHub and MkDocs make of its headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    of_headings = {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}
    return frozenset(of_headings | set(re.findall(r'<a id="([\w-]+)"></a>', text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_to_a_page_and_a_heading(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z+]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_that_code_and_scripts_name_is_there() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    missing = []
    for name in listed:
        file = ROOT / name
        if file.suffix in (".md", ".py", ".sh", ".toml", ".yml", "") and file.is_file():
            for page in PAGE_NAME.findall(file.read_text(encoding="utf-8", errors="replace")):
                if not (ROOT / page).is_file():
                    missing.append(f"{name}: {page}")
    assert not missing


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "https://cdn.example/x.js"),
        ("<img alt=x src=//img.example/a.png>", "//img.example/a.png"),
        ('<link rel="stylesheet" href="https://fonts.example/css">', "https://fonts.example/css"),
        ("a { background: url(https://img.example/b.png) }", "https://img.example/b.png"),
        ('@import "https://fonts.example/all.css";', "https://fonts.example/all.css"),
    ],
)
def test_the_site_is_refused_if_it_asks_another_host(text: str, address: str) -> None:
    assert external_assets(text) == [address]


def test_a_bar_in_code_of_a_table_is_shown_without_a_backslash() -> None:
    row = r"| `+memory\|usage` | a \| b |"
    assert bars_in_code(f"`x\\|y`\n\n{row}\n") == f"`x\\|y`\n\n{row.replace('memory' + chr(92), 'memory')}\n"


def test_links_to_other_hosts_are_no_assets() -> None:
    page = '<link rel="canonical" href="https://a.example/"><a href="https://b.example/">b</a><img src="../c.svg">'
    assert external_assets(page) == []


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("# Trim\n\nRedis keeps\nan [entry](a.md) after 1.5 days. More.\n", "Redis keeps an entry after 1.5 days."),
        ("# Query\n\n<!-- printed: x -->\n\nThis one:\n\n```\nx\n```\n", "This one"),
        ("# Table\n\n| a | b |\n|---|---|\n", ""),
    ],
)
def test_the_list_of_pages_has_the_first_sentence_of_each(page: str, sentence: str) -> None:
    assert first_sentence(page) == sentence


def test_the_menu_of_the_site_has_every_page_once() -> None:
    menu = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(menu) == sorted(pages), "mkdocs.yml, nav: add the page where a reader needs it"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_what_is_printed_from_the_code_is_what_the_code_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert reference.printed(text) == text, "print it: python -m tools.reference"


def test_conf_is_the_folder_of_the_package() -> None:
    """`rstream init etl` writes conf/etl.toml, and an installation without a clone has the same settings of Spark. In a
    clone the folder is a link."""
    texts = [{file.name: file.read_text("utf-8") for file in folder.iterdir()} for folder in (CONF, ROOT / "conf")]
    assert texts[0] == texts[1]
    assert {job: texts[0][f"{job}.toml"] for job in JOBS} == {job: sample_config(job) for job in JOBS}


def test_everything_that_can_be_printed_has_a_page() -> None:
    pages = [reference.blocks_in(page.read_text(encoding="utf-8")) for page in DOCS.rglob("*.md")]
    assert sorted(name for names in pages for name in names) == sorted(reference.BLOCKS)


def test_the_page_of_errors_names_every_error_with_its_cause_and_remedy() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RStreamError)]
    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    assert len(kinds) > 30
    for kind in kinds:
        assert f"\n## {kind.condition}\n" in page
        assert "remedy" in vars(kind), f"{kind.__name__} has no remedy of its own"
        assert kind.__doc__


def test_the_page_of_the_python_api_has_every_public_name() -> None:
    page = (REFERENCE / "python.md").read_text(encoding="utf-8")
    missing = {name for name in spark_streams.__all__ if name != "__version__" and f".{name}\n" not in page}
    assert not missing


def test_the_page_of_keys_has_a_row_for_every_kind_of_key() -> None:
    package = ROOT / "spark_streams"
    code = "\n".join(file.read_text(encoding="utf-8") for file in package.rglob("*.py"))
    kinds = set(re.findall(r'key_(?:beside\([\w.]+|of_query\((?=")),? ?"(\w+)"', code))
    kinds |= set(
        re.findall(r'f?"rstream:([a-z]+)[:"]', (package / "connector" / "keys.py").read_text(encoding="utf-8"))
    )
    made = [*keys.keys_of_consumer("orders", "etl", "spark"), *keys.keys_of_group("orders", "etl", 1)]
    kinds |= {kind for kind, _ in made}
    page = (REFERENCE / "keys.md").read_text(encoding="utf-8")
    assert len(kinds) > 20
    assert {kind for kind in kinds if f"`rstream:{kind}:" not in page and f"`rstream:{kind}`" not in page} == set()


def test_the_page_about_the_engine_lists_its_commands() -> None:
    page = (REFERENCE / "engine.md").read_text(encoding="utf-8")
    rows = page.partition("## Commands\n")[2].partition("\n\nAny other")[0].splitlines()
    listed = [name for row in rows[3:] for name in row.split("|")[2].split()]
    assert sorted(listed) == sorted(name.decode().upper() for name in COMMANDS)


def test_each_page_is_one_click_from_the_first() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))}
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - linked == {"index.md"}


MOST_WORDS = 1_200
MOST_WORDS_OF_ALL = 58_270
MOST_LINES_OF_README = 100
MOST_WORDS_IN_A_SENTENCE = 25
GUIDE = sorted((DOCS / "guide").glob("*.md"))
FOR_USERS = pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDE], ids=lambda page: page.stem)
EXAMPLE = re.compile(r"<!-- from (\S+) -->\n```python\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def sentences(page: str) -> list[str]:
    """Return the sentences of a page, without code blocks, tables, headings and link targets. A colon ends one, too."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"^(\s*\||#).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    return [sentence for one in paragraphs for sentence in re.split(r"(?<=[.!?:])[)\"*]*\s+", one) if sentence]


def test_the_splitter_finds_the_sentences_of_a_page() -> None:
    page = "# A head. No\n\nOne [two](a.md#b). Three\nfour: `five six`.\n\n| a. b |\n\n- **Seven.** Eight\n- nine\n"
    assert sentences(f"{page}```\nno. no\n```\n") == ["One two.", "Three four:", "code.", "**Seven.", "Eight", "nine"]


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_a_page_of_the_guide_is_short_and_so_are_its_sentences(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split()) <= MOST_WORDS
    assert [one for one in sentences(text) if len(one.split()) > MOST_WORDS_IN_A_SENTENCE] == []


def test_the_pages_together_are_no_longer_than_a_reader_can_bear() -> None:
    """A word has a letter or a digit. A log of experiments (facts) and printed tables (mutants, servers) do not."""
    pages = [page for page in DOCS.rglob("*.md") if page.stem not in ("facts", "mutants", "servers")]
    words = [word for page in pages for word in page.read_text(encoding="utf-8").split() if re.search(r"\w", word)]
    assert len(words) <= MOST_WORDS_OF_ALL, "say it on one page, and link to it from the others"


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES_OF_README
    assert [one for one in sentences(text) if len(one.split()) > MOST_WORDS_IN_A_SENTENCE] == []


@FOR_USERS
def test_the_python_of_a_page_is_that_of_a_tested_program_or_compiles(page: Path) -> None:
    """A block behind `<!-- from FILE -->` is a part of that file, which other tests run."""
    text = page.read_text(encoding="utf-8")
    for name, block in EXAMPLE.findall(text):
        assert block in (ROOT / name).read_text(encoding="utf-8")
    for block in PYTHON.findall(text):
        compile(block, page.name, "exec")


def test_the_tabs_of_the_first_query_are_python_with_urls_that_a_query_takes() -> None:
    page = (DOCS / "guide" / "first-query.md").read_text(encoding="utf-8")
    tabs = re.findall(r'^=== "([^"]+)"\n\n    ```python\n((?:    .*\n)+?)    ```$', page, re.MULTILINE)
    sessions, urls = tabs[:3], tabs[3:]
    assert [name for name, _ in sessions] == ["local", "cluster", "Connect"]
    assert [name for name, _ in urls] == ["bundled", "one server", "Sentinel", "cluster"]
    for _, block in sessions:
        compile(textwrap.dedent(block), page, "exec")
    for _, block in urls:
        names: dict[str, str] = {}
        exec(textwrap.dedent(block), names)
        assert Address.parse(names["url"]).url == names["url"]


@FOR_USERS
def test_the_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fenced if language in ("", "sh")]
    for line in (line for block in blocks for line in block.splitlines() if line.startswith("rstream ")):
        words = shlex.split(line, comments=True)[1:]
        command: Command = main
        while isinstance(command, Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not main, line
        if command.context_settings.get("ignore_unknown_options"):
            continue  # `rstream serve` passes its options on to the engine
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, line


def test_troubleshooting_has_every_error_without_a_more_exact_one() -> None:
    page = (DOCS / "guide" / "troubleshooting.md").read_text(encoding="utf-8")
    kinds = [errors.RStreamError]
    for kind in kinds:
        kinds += [one for one in kind.__subclasses__() if one.__module__.startswith("spark_streams.")]
    leaves = {kind.condition for kind in kinds if not kind.__subclasses__()}
    assert {code for code in leaves if f"`{code}`" not in page} == set()
    printed = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    assert {kind.condition for kind in kinds if f"## {kind.condition}\n" not in printed} == set()


@pytest.mark.parametrize(
    ("words", "page", "heading"),
    [
        ("time zone", "reference/types", "Time zones"),
        ("redis memory full", "guide/trim", "The server is full now"),
        ("backfill", "guide/start-and-restart", "Read entries again"),
        ("failed to connect back", "guide/troubleshooting", "Values and rows"),
        ("lag alert", "guide/monitoring", "A lag alert without Prometheus"),
        ("redis-py", "guide/from-redis-py", "From redis-py workers to a query, and back"),
        ("rows twice", "guide/troubleshooting", "Rows are there twice"),
        ("deduplicate", "guide/troubleshooting", "Rows are there twice"),
        ("move another server", "guide/copy", "Move a query to another server"),
        ("postgres exactly once", "guide/recipes-tables", "PostgreSQL, exactly once"),
        ("restart server lag", "guide/monitoring", "From the shell"),
        ("maxdeliveries starts", "guide/dead-letters", "Keep what kills the query"),
        ("upgrade back", "guide/backup", "Upgrade"),
        ("scale to zero", "guide/on-a-schedule", "On a schedule, and scale to zero"),
        ("rotate password", "guide/security", "Rotate a password"),
        ("no rows latest", "guide/troubleshooting", "No error, but no rows"),
        ("slow start", "guide/troubleshooting", "It starts slowly"),
        ("eofexception", "guide/troubleshooting", "Values and rows"),
        ("unit test fixture", "guide/testing", "Test your pipeline"),
        ("late watermark", "guide/recipes", "Late rows"),
    ],
)
def test_a_section_has_the_words_that_users_search_for(words: str, page: str, heading: str) -> None:
    """The site's search finds sections: all words are in one, beside each other or in its heading."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^#+ (.+)\n((?:(?!^#).*\n)*)", text, re.MULTILINE))
    found = [name for name, body in sections.items() if all(word in f"{name} {body}".lower() for word in words.split())]
    assert heading in found
