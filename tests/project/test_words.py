"""The test of the words finds each kind of word, and leaves plain names and sentences alone."""

import pytest

from tools.words import words_of_code, words_of_test_code, words_of_text


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "_found = 1",
        "def f(one): ...",
        "[at for at in range(3)]",
        "for known in []: pass",
        "self.told = 1",
        "def given(): ...",
        "match x:\n    case [left]: pass",
        "def standings_of(): ...",
        "class Mender: ...",
        '"""What is gone."""',
        "x = 1  # somebody",
        'raise ValueError("whoever it is")',
    ],
)
def test_a_word_of_code_is_found(code: str) -> None:
    (word,) = words_of_code("a.py", code)
    assert word.place in ("a.py:1", "a.py:2")


@pytest.mark.parametrize(
    "code",
    ["batch = known", "def lookup(stream): ...", "print(one=1)", '"""A dead letter."""', 'get("letters.stream")'],
)
def test_a_plain_name_is_no_word(code: str) -> None:
    assert not list(words_of_code("a.py", code))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("tests/standing.py", ""),
        ("tests/a.py", "def told(): ..."),
        ("tests/a.py", "@pytest.fixture\ndef both(): ..."),
        ("tests/a.py", "class Mender: ..."),
        ("tests/a.py", "class Run:\n    def said(self): ..."),
        ("tests/a.py", "def test_a_group_that_is_gone(): ..."),
    ],
)
def test_names_of_files_classes_and_functions_of_tests_are_checked(name: str, code: str) -> None:
    assert len(list(words_of_test_code(name, code))) == 1


def test_local_variables_parameters_and_texts_of_tests_are_not_checked() -> None:
    code = 'def test_a_batch(one):\n    """What is gone."""\n    found = one\n    self.told = found'
    assert not list(words_of_test_code("tests/a.py", code))


def test_a_phrase_may_be_broken_over_two_lines() -> None:
    (word,) = words_of_text("a.md", "first\nwhat it\nis said\n  of it", 10)
    assert str(word) == "a.md:11: 'it is said': write is reported, is printed, the error names …"
