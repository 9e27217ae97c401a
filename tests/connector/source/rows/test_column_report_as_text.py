"""What people read of values that do not fit, and of columns that no entry has a field for."""

from __future__ import annotations

import pytest

from spark_streams.connector.source.rows.column_report import (
    READ_MODES,
    STREAM_MODES,
    BadValues,
    ColumnReport,
    ColumnWarnings,
)


def unfit(mode: str = "PERMISSIVE", count: int = 667, **others: int) -> ColumnReport:
    return ColumnReport(mode, 700, {"amount": BadValues("INT", {"orders": count, **others}, "orders", "1-0", "b'x'")})


def warnings_of(
    caplog: pytest.LogCaptureFixture, *reports: ColumnReport, modes: tuple[str, ...] = STREAM_MODES
) -> list[str]:
    """What one run says of these batches of 1,000 entries."""
    caplog.clear()
    warnings = ColumnWarnings(modes)
    for report in reports:
        warnings.warn(report, 1000, "of this batch")
    return [record.getMessage() for record in caplog.records]


def test_values_that_do_not_fit_are_reported_with_the_first_and_a_remedy(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(caplog, unfit()) == [
        "stream 'orders', column 'amount': 667 of 1,000 entries of this batch have a value that does not fit INT, "
        "which is null instead (mode PERMISSIVE). The first has the form b'x' (x: a letter, 9: a "
        "digit) in entry 1-0. Declare the column STRING, or set "
        "mode to FAILFAST or DEADLETTER"
    ]
    assert warnings_of(caplog, unfit("DROPMALFORMED", 1), modes=READ_MODES) == [
        "stream 'orders', column 'amount': 1 of 1,000 entries of this batch has a value that does not fit INT, and "
        "is left out (mode DROPMALFORMED). The first has the form b'x' (x: a letter, 9: a "
        "digit) in entry 1-0. Declare the column STRING, or set mode to "
        "PERMISSIVE or FAILFAST"
    ]
    [text] = warnings_of(caplog, unfit("DEADLETTER", 2, refunds=3, returns=1))
    assert text.startswith(
        "stream 'orders' and 2 more, column 'amount': 6 of 1,000 entries of this batch have a value "
    )
    assert "and become dead letters (mode DEADLETTER)" in text


def test_each_column_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    other = ColumnReport("PERMISSIVE", 10, {"n": unfit().bad["amount"]}, ("b",), ("a",))
    assert len(warnings_of(caplog, unfit(), unfit(count=3), other, other)) == 3


@pytest.mark.parametrize(
    ("column", "names", "ends"),
    [
        ("ammount", ("amount", "b"), ". Did you mean 'amount'? They have: amount, b"),
        ("AMOUNT", ("b", "Amount"), ". Did you mean 'Amount'? They have: b, Amount"),
        ("total", ("amount", "b"), ". They have: amount, b"),
        ("total", tuple("abcdefghijkl"), ". They have: a, b, c, d, e, f, g, h, i, j and 2 more"),
    ],
)
def test_a_column_without_a_field_is_reported_with_the_nearest(
    caplog: pytest.LogCaptureFixture, column: str, names: tuple[str, ...], ends: str
) -> None:
    [text] = warnings_of(caplog, ColumnReport("FAILFAST", 700, {}, (column,), names))
    assert text == f"column {column!r} is null: none of 700 entries of this batch has a field of that name" + ends
