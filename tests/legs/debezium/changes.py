"""Random transactions on the table, as files for psql."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from tests.legs.debezium.table import COLUMNS, KEYS, NAME, value_of


def session(count: int, columns: Iterable[str], chance: random.Random) -> str:
    """Return transactions of `count` statements, with a pause after each. Several sessions may wait for each other, and
    one of them be rolled back."""
    statements = _statements([*columns], chance)
    lines = []
    while count > 0:
        size = min(count, chance.choice([1, 1, 2, 3, 8]))
        count -= size
        end = "ROLLBACK" if chance.random() < 0.05 else "COMMIT"
        lines += ["BEGIN", *(next(statements) for _ in range(size)), end, "SELECT pg_sleep(0.005)"]
    return "".join(f"{line};\n" for line in lines)


def _statements(columns: list[str], chance: random.Random) -> Iterator[str]:
    kinds = {_insert: 35, _update: 40, _update_some: 5, _delete: 15, _move: 4, _undone: 2, _truncate: 0.05}
    while True:
        (kind,) = chance.choices([*kinds], [*kinds.values()])
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
