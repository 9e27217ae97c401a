"""Random transactions on the table, as files for psql."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.legs.debezium.table import COLUMNS, KEYS, NAME, value_of

_SIZES = (1, 1, 2, 3, 8)  # statements in a transaction
_MEAN_SIZE = sum(_SIZES) / len(_SIZES)


@dataclass(frozen=True)
class Session:
    """sql: what psql reads; kinds: how many statements of each kind it has, and how many transactions are undone."""

    sql: str
    kinds: Counter[str]


def session(count: int, seconds: float, columns: Iterable[str], chance: random.Random) -> Session:
    """Return transactions of `count` statements. Several sessions may wait for each other, and one of them be rolled
    back. seconds: of all pauses between them."""
    kinds: Counter[str] = Counter()
    statements = _statements([*columns], chance, kinds)
    pause = f"SELECT pg_sleep({seconds * _MEAN_SIZE / max(count, 1)})"
    lines = []
    while count > 0:
        size = min(count, chance.choice(_SIZES))
        count -= size
        end = "ROLLBACK" if chance.random() < 0.05 else "COMMIT"
        kinds[end.lower()] += 1
        lines += ["BEGIN", *(next(statements) for _ in range(size)), end, pause]
    return Session("".join(f"{line};\n" for line in lines), kinds)


def _statements(columns: list[str], chance: random.Random, kinds: Counter[str]) -> Iterator[str]:
    weights = {_insert: 35, _update: 40, _update_some: 5, _delete: 15, _move: 4, _undone: 2, _truncate: 0.05}
    while True:
        (kind,) = chance.choices([*weights], [*weights.values()])
        kinds[kind.__name__.strip("_")] += 1
        yield kind(columns, chance)


def _key(chance: random.Random) -> int:
    return chance.randrange(KEYS)


def _some(columns: list[str], chance: random.Random) -> dict[str, str]:
    chosen = chance.sample(columns, chance.randrange(1, 4))
    return {name: value_of(COLUMNS[name], chance) for name in chosen}


def _settings(columns: list[str], chance: random.Random) -> str:
    return ", ".join(f"{name} = {value}" for name, value in _some(columns, chance).items())


def _insert(columns: list[str], chance: random.Random) -> str:
    values = {name: value_of(COLUMNS[name], chance) for name in columns}
    otherwise = f"UPDATE SET {_settings(columns, chance)}" if chance.random() < 0.5 else "NOTHING"
    return (
        f"INSERT INTO {NAME} (id, {', '.join(values)}) VALUES ({_key(chance)}, {', '.join(values.values())}) "
        f"ON CONFLICT (id) DO {otherwise}"
    )


def _update(columns: list[str], chance: random.Random) -> str:
    return f"UPDATE {NAME} SET {_settings(columns, chance)} WHERE id = {_key(chance)}"


def _update_some(columns: list[str], chance: random.Random) -> str:
    first = _key(chance)
    return f"UPDATE {NAME} SET {_settings(columns, chance)} WHERE id BETWEEN {first} AND {first + 5}"


def _delete(columns: list[str], chance: random.Random) -> str:
    return f"DELETE FROM {NAME} WHERE id = {_key(chance)}"


def _move(columns: list[str], chance: random.Random) -> str:
    """The row gets another key: a delete and an insert. Large values change, too, or no event of the key has them."""
    large = {name: value_of(COLUMNS[name], chance) for name in columns if COLUMNS[name].large}
    values = ", ".join(f"{name} = {value}" for name, value in {**_some(columns, chance), **large}.items())
    return f"UPDATE {NAME} SET id = {_key(chance)}, {values} WHERE id = {_key(chance)}"


def _undone(columns: list[str], chance: random.Random) -> str:
    return f"SAVEPOINT one; {_update(columns, chance)}; {_delete(columns, chance)}; ROLLBACK TO one"


def _truncate(columns: list[str], chance: random.Random) -> str:
    return f"TRUNCATE {NAME}"
