"""The table of decisions of a redrive: one row of a page for each of its lines. Pure."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.deadletter.letter_page import Criteria, DeadLetterPage
from spark_streams.connector.deadletter.redrive_plan import Decision, RedriveOptions, origins, plan_page
from spark_streams.connector.deadletter.transform import DeadLetter
from spark_streams.connector.wire.entry_page import decode_entries

CLOSED, HOMELESS, LEFT, MOVE, NOT_MEANT, PARK = (
    *(Decision.CLOSED, Decision.HOMELESS, Decision.LEFT),
    *(Decision.MOVE, Decision.NOT_MEANT, Decision.PARK),
)
OPTIONS = RedriveOptions("dead", criteria=Criteria(reasons=("odd",))).checked()


def page() -> DeadLetterPage:
    """No dead letter, another reason, redriven three times, no stream, `dead` itself, a strange stream, two of s."""

    def letter(stream: str, reason: str = "odd", redrives: int = 0) -> list[bytes]:
        past = [b"dl.redriven", b"%d  x/1-0" % redrives] if redrives else []
        return dead_letter_fields([b"n", b"1", *past], {"stream": stream, "id": "1-0", "reason": reason})

    rows = [
        *([b"n", b"1"], letter("s", "decode"), letter("", redrives=3), letter(""), letter("dead")),
        *(letter("strange"), letter("s"), letter("s")),
    ]
    bulk = [[b"$%d\r\n%b\r\n" % (len(word), word) for word in (b"%d-1" % at, *row)] for at, row in enumerate(rows, 1)]
    parts = [b"*2\r\n%b*%d\r\n%b" % (entry, len(words), b"".join(words)) for entry, *words in bulk]
    return DeadLetterPage(decode_entries(b"*%d\r\n%b" % (len(rows), b"".join(parts))))


@pytest.mark.parametrize(
    ("options", "leaves", "limit", "decisions", "last"),
    [
        ({}, False, None, [NOT_MEANT, NOT_MEANT, PARK, HOMELESS, HOMELESS, CLOSED, MOVE, MOVE], 7),
        ({}, True, None, [NOT_MEANT, NOT_MEANT, PARK, HOMELESS, HOMELESS, CLOSED, MOVE, LEFT], 7),
        ({}, False, 2, [NOT_MEANT, NOT_MEANT, PARK, HOMELESS, HOMELESS, CLOSED, MOVE, NOT_MEANT], 6),
        ({}, False, 1, [NOT_MEANT, NOT_MEANT, PARK, *[NOT_MEANT] * 5], 2),
        ({}, False, 0, [NOT_MEANT] * 8, -1),
        ({"to": "t"}, False, None, [NOT_MEANT, NOT_MEANT, PARK, MOVE, MOVE, MOVE, MOVE, MOVE], 7),
        ({"max_redrives": 0}, True, None, [NOT_MEANT, NOT_MEANT, *[PARK] * 6], 7),
    ],
)
def test_each_row_has_the_first_decision_that_applies(
    options: dict[str, object], leaves: bool, limit: int | None, decisions: list[Decision], last: int
) -> None:
    letters = page()
    chosen = RedriveOptions(**{**vars(OPTIONS), **options})  # type: ignore[arg-type]

    def repair(letter: DeadLetter) -> dict[str, str] | None:
        return None if letter.id == "8-1" else letter.fields

    own = {origin for origin in origins(letters, chosen) if origin[0] == "s"}
    plan = plan_page(letters, chosen, repair if leaves else None, limit, own)
    assert plan.decisions.tolist() == decisions
    assert plan.last == last
    leaving = [at for kind in (MOVE, PARK) for at, decision in enumerate(decisions) if decision is kind]
    assert plan.rows.tolist() == leaving
    assert list(plan.ids) == [b"%d-1" % (at + 1) for at in leaving]
    assert len(plan.requests) == len(leaving)
    counted: Counter[str] = Counter()
    for (action, *_), count in plan.counts:
        counted[action] += count.letters
    actions = {"move": MOVE, "park": PARK, "stay": HOMELESS, "refuse": CLOSED}
    assert counted == Counter({action: decisions.count(kind) for action, kind in actions.items()})
