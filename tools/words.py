"""Names and phrases that must not come back: `python -m tools.words [PATH ...]`, as scripts/check runs it.

A name of a value is the noun of what it holds (a batch, a stream, an entry ID), not a word such as `found` or `one`,
which every reader has to look up. A phrase of PHRASES has a plain one beside it. Code is read by Python's own parser:
names are checked where they are bound. Phrases are looked for in docstrings, comments, messages and pages.

Under tests/, the names that a reader meets outside of one function are checked: those of files, of classes and of
functions, fixtures included. The name of a test is a sentence, so phrases are looked for in it. Local variables,
parameters and texts of tests are not checked.

Exit code 1 if a word is there; each is printed with its place and what to write instead.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CHECKED = (
    *("spark_streams", "jobs", "examples", "tools", "tests", "scripts"),
    *("docs", "conf", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
)
OURSELVES = "tools/words.py"
TESTS = "tests/"
NOUN = "the noun of what it holds"

# Names that say nothing of a value, whatever it is.
EMPTY_NAMES = frozenset(
    re.findall(
        r"\w+",
        """one ones at found left known told some gone said given met handed meant asked answered heard looked what
        which there here them it thing things somebody most least much many few several both each every again afresh
        anew beside by of had got way ways made whole vain guilty hand hands""",
    )
)
# Parameters that read as a word of the call: engine.freeze(at="2026-01-01").
IN_CALLS = {"spark_streams/engine/launch/test_controls.py": frozenset({"at"})}
# Names of one mechanism that have a plain one now.
RENAMED = {
    "look": "snapshot, or fetch_… for what asks the server",
    "looks": "snapshots",
    "Look": "GroupPreview",
    "Looks": "SnapshotCache",
    "Told": "ChangeReport",
    "streams_meant": "resolve_streams",
    "standings_of": "load_groups",
    "standing": "group, lag or retention: what it is",
    "standings": "groups",
    "Standing": "GroupSnapshot, ConsumerLag or RetentionState",
    "Standings": "GroupSnapshots",
    "Mender": "Repair",
    "Mended": "Repair",
    "Book": "PoisonState",
    "book": "poison_state",
    "Books": "StreamFacts",
    "books": "facts",
    "Room": "BatchQuota",
    "Rooms": "BatchQuotas",
    "room": "quota",
    "rooms": "quotas",
    "Scales": "EntrySizer",
    "Weighed": "FittingEntries",
    "first_of": "take_prefix",
    "Covering": "DurabilityCheck",
    "Resolver": "ChunkRecovery",
    "_Opening": "LedgerJoin",
    "_Heard": "ExecOutcome",
    "Chosen": "StreamFilter",
    "chosen": "stream_filter, or the noun of what was chosen",
    "begin_afresh": "RunState.unknown()",
    "none_meant": "no_match",
    "ways_back": "the noun of what it holds",
    "come_back": "returned_entries",
}
# Parts of a sentence that people read twice, as regular expressions, and what to write.
PHRASES = {
    r"\bis said\b|\bare said\b|\band said\b|\bit is said\b": "is reported, is printed, the error names …",
    r"\bis told of\b|\bare told of\b|\bis told\b|\bare told\b": "receives, is reported to",
    r"\bwhat is gone\b|\bis gone\b|\bare gone\b|\bwas gone\b|\bwere gone\b": "deleted, trimmed, missing",
    r"\bsomebody\b|\bsomeone\b": "another client, an operator",
    r"\bwhoever\b": "the user, the caller, a reader: the actor",
    r"\bhands on\b": "managing",
    r"\banother try\b|\btried anew\b|\banew\b|\bafresh\b": "retry, again",
    r"\bcomes? back\b|\bcame back\b": "is returned, is retried",
    r"\bin vain\b": "without success, failed",
    r"\b(?:is|are|was|were) meant\b": "names, means, refers to",
    r"\bas it (?:is|was|stands)\b(?! (?:written|configured))": "unchanged",
    r"\bnowhere\b": "in no list, on no server",
    r"\b(?:had|has|have) it\b(?! that)": "holds the noun",
    r"\bso long as\b": "while, as long as",
    r"\bthat which\b|\bthose which\b": "the noun",
    r"\bput right\b|\bset right\b": "repair, correct",
    r"\bgives? back\b|\bgiven back\b": "returns, restores",
    r"\bhas it that\b": "says",
    # Not `[letters]`, `letters.stream` and "letters": keys of a job's configuration, and a transaction's name.
    r"(?<!dead )(?<!dead-)(?<!capital )(?<!small )(?<!of )\b(?<![-.])letters?\b"
    r"(?! of the alphabet|[]\"']|\.[a-z{])": "dead letter",
    r"\bthe like\b": "the nouns",
    r"\bgoes by\b|\bgo by\b": "uses, follows, passes",
    r"\bhow it (?:stands|goes|went)\b|\bhow things (?:stand|are)\b": "the state",
    r"\bmakes? good\b": "repairs, replaces",
    r"\bno longer than\b.{0,20}\bmay\b": "at most",
    r"\bother than by\b": "except by",
}
# Names and texts that users have in their programs or that are in JSON: file → words.
PUBLIC = {
    "spark_streams/deadletter/inspect/listing.py": {"letters"},
    "spark_streams/deadletter/redrive/redrive.py": {"left"},
    "spark_streams/deadletter/write/routing.py": {"letters", "at"},
    "spark_streams/groups/claim.py": {"gone"},
}


class Word(NamedTuple):
    """A word that must not be there."""

    place: str
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.place}: {self.word!r}: write {self.instead}"


def words_of_code(name: str, source: str) -> Iterator[Word]:
    """Names that are bound in Python source, and phrases of its docstrings, comments and messages."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for identifier in _bound(node):
            if identifier in IN_CALLS.get(name, ()):
                continue
            if identifier in EMPTY_NAMES or identifier.lstrip("_") in EMPTY_NAMES:
                yield Word(f"{name}:{getattr(node, 'lineno', 1)}", identifier, NOUN)
            elif identifier in RENAMED:
                yield Word(f"{name}:{getattr(node, 'lineno', 1)}", identifier, RENAMED[identifier])
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from words_of_text(name, token.string, token.start[0])


def words_of_test_code(name: str, source: str) -> Iterator[Word]:
    """Names of a file of tests, of its classes and of its functions, and phrases in these names."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    named = [(1, Path(name).stem)]
    named += [(node.lineno, node.name) for node in ast.walk(ast.parse(source)) if isinstance(node, definitions)]
    for line, identifier in named:
        if identifier.lstrip("_") in EMPTY_NAMES:
            yield Word(f"{name}:{line}", identifier, "a name that says what it does or holds")
        elif identifier in RENAMED:
            yield Word(f"{name}:{line}", identifier, RENAMED[identifier])
        else:
            yield from words_of_text(name, identifier.replace("_", " "), line)


def _bound(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=identifier, ctx=ast.Store()) | ast.arg(arg=identifier):
            return [identifier]
        case ast.Attribute(attr=identifier, ctx=ast.Store()):
            return [identifier]
        case ast.FunctionDef(name=identifier) | ast.AsyncFunctionDef(name=identifier) | ast.ClassDef(name=identifier):
            return [identifier]
        case ast.MatchAs(name=str(identifier)) | ast.MatchStar(name=str(identifier)):
            return [identifier]
    return []


def words_of_text(name: str, text: str, first_line: int = 1) -> Iterator[Word]:
    """Phrases in a text; a line break, with what a comment's next line begins with, counts as a blank."""
    flat, lines = "", list[int]()
    for number, line in enumerate(text.splitlines(), first_line):
        words = " ".join(line.strip().removeprefix("#").split()) + " "
        flat += words
        lines += [number] * len(words)
    for pattern, instead in PHRASES.items():
        for match in re.finditer(pattern, flat, re.IGNORECASE):
            yield Word(f"{name}:{lines[match.start()]}", match[0], instead)


def words_of(file: Path) -> list[Word]:
    """All words of a file, in the order of its lines."""
    name = str(file.relative_to(ROOT))
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix != ".py":
        words = [] if name.startswith(TESTS) else words_of_text(name, text)
    else:
        words = words_of_test_code(name, text) if name.startswith(TESTS) else words_of_code(name, text)
    public = PUBLIC.get(name, ())
    checked = [word for word in words if word.word not in public]
    return sorted(checked, key=lambda word: int(word.place.rpartition(":")[2]))


def files_of(paths: list[str]) -> list[Path]:
    """The tracked text files under these paths."""
    listed = subprocess.run(["git", "ls-files", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    suffixes = (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".properties", ".conf", "")
    files = [ROOT / name for name in listed.stdout.splitlines() if name != OURSELVES]
    return [file for file in files if file.suffix in suffixes and file.is_file()]


def main(paths: list[str]) -> int:
    """Exit code."""
    words = [word for file in files_of(paths or list(CHECKED)) for word in words_of(file)]
    for word in words:
        print(word)
    return int(bool(words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
