"""The report of a run: its verdict, and the page in HTML, which loads nothing and in which every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from string import Template

from spark_streams.base.printable import printable
from spark_streams.operations.verify.history import list_first
from spark_streams.operations.verify.judge import Fault, Judgement

HELD, BROKEN, UNPROVED = "held", "broken", "not proved"  # verdicts
# Faults by their names here. The first five are always shown.
_NAMES = {
    Fault.LOST: "lost",
    Fault.TWICE: "twice",
    Fault.REORDERED: "out of order",
    Fault.EARLY: "acknowledged early",
    Fault.PENDING: "left pending",
    Fault.PHANTOM: "sent by nobody",
    Fault.BURIED: "dead letters of good entries",
}
_SHOWN = 20  # entries of a fault


@dataclass(frozen=True)
class Sum:
    """What went in and what came out, counted independently: each entry has one row or one dead letter."""

    confirmed: int  # adds with a reply
    unconfirmed: int  # entries in the streams whose adds had no reply
    rows: int
    dead_letters: int
    not_added: int = 0  # adds without a reply that are not there

    @property
    def difference(self) -> int:
        """Entries that have neither row nor dead letter; negative: there are too many."""
        return self.confirmed + self.unconfirmed - self.rows - self.dead_letters

    def __str__(self) -> str:
        sign = "=" if not self.difference else "≠"
        return f"{self.confirmed:,} + {self.unconfirmed:,} {sign} {self.rows:,} + {self.dead_letters:,}"

    def lines(self) -> dict[str, str]:
        """Return the numbers by name, and their equation."""
        return {
            "entries, confirmed": f"{self.confirmed:,}",
            "entries, reply lost": f"{self.unconfirmed:,} (and {self.not_added:,} adds without a reply are not there)",
            "rows": f"{self.rows:,}",
            "dead letters": f"{self.dead_letters:,}",
            "entries = rows + dead letters": str(self),
        }


@dataclass(frozen=True)
class RunResult:
    """What a run has found."""

    report: Judgement
    evidence: Mapping[str, int]  # counts, none of which may be 0
    sections: Mapping[str, Mapping[str, str]]  # what else is reported: values by name and title
    cause: str = ""  # why the query did not read everything, "" if it did
    sum: Sum = Sum(0, 0, 0, 0)  # fails the run if it does not add up

    @property
    def counts(self) -> dict[str, int]:
        """Number of faults by name."""
        counts = dict.fromkeys(list(_NAMES.values())[:5], 0)
        return counts | {_NAMES.get(fault, fault): len(found) for fault, found in self.report.found.items()}

    @property
    def verdict(self) -> str:
        """One of the three verdicts."""
        if self.report or self.cause or self.sum.difference:
            return BROKEN
        return HELD if all(self.evidence.values()) else UNPROVED

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        missing = ", ".join(f"no {name}" for name, count in self.evidence.items() if not count)
        differs = f"Entries are not rows and dead letters: {self.sum}." if self.sum.difference else ""
        return {
            HELD: "The guarantees held.",
            BROKEN: " ".join(filter(None, ["The guarantees did not hold.", self.cause, differs])),
            UNPROVED: f"Nothing is wrong, but nothing is proved: {missing}. Give the run more --minutes.",
        }[self.verdict]

    def titled(self) -> dict[str, Mapping[str, str]]:
        """Return all that is reported beside the verdict: texts by name, by title."""
        wrong = {_NAMES.get(one, one): list_first(self.report.named(one), _SHOWN) for one in self.report.found}
        evidence = {name: f"{count:,}" for name, count in self.evidence.items()}
        sections = {"sum": self.sum.lines(), "evidence": evidence, **self.sections}
        return {**({"what is wrong": wrong} if wrong else {}), **sections}

    def for_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        faults = {str(fault): self.report.named(fault) for fault in self.report.found}
        verdict = {"verdict": self.verdict, "sentence": self.sentence, "counts": self.counts, "faults": faults}
        added_up = {**asdict(self.sum), "difference": self.sum.difference}
        return {
            **verdict,
            "sum": added_up,
            "evidence": dict(self.evidence),
            **{title: dict(of) for title, of in self.sections.items()},
        }

    def __str__(self) -> str:
        lines = [" · ".join(f"{name} {count:,}" for name, count in self.counts.items()), "", self.sentence]
        for title, texts in self.titled().items():
            width = max(map(len, texts), default=0)
            lines += ["", title, *(f"  {name:<{width}}  {text}" for name, text in texts.items())]
        return "\n".join(lines)


def page(result: RunResult) -> str:
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
