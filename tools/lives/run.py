"""Run a life: who does something next, and which command, until its end is judged."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.lives.commands import COMMANDS, OF_FILES, Command, Words, at_a_mark
from tools.lives.judge import at_the_end, judge, note_file, target_of
from tools.lives.life import REPAIRED, Life, Run
from tools.lives.processes import on, product
from tools.lives.state import change
from tools.simulation.actor import Killed
from tools.simulation.in_process.server import ProcessServer

_STEPS = 24
_DAY = 86_400


def live(server: ProcessServer, seed: int, tell: Callable[[str], None] = lambda _: None) -> Life:
    """Run one life on a patched product. Its faults are what must not be."""
    life = Life(server, seed, tell)
    with tempfile.TemporaryDirectory(prefix="lives-") as life.folder, on(life.place):
        for _ in range(_STEPS):
            life.act() if life.chance.random() < 0.65 else command(life)
            if life.faults:
                return life
        _end(life)
    return life


@dataclass
class Shown:
    """A command after its dry run."""

    name: str
    command: Command
    words: Words
    dry: Run

    def again(self, life: Life) -> list[str]:
        """Return the words of the change, mostly with the bounds of the dry run."""
        bounds = self.dry.answer.said.get("bounds", []) if life.chance.random() < 0.8 else []
        return [*_without(self.words, bounds), *bounds, "--yes"]


def command(life: Life) -> None:
    """Run a command: its dry run, and then the change, maybe beside another one or a query, interrupted or killed."""
    chance, calm = life.chance, True
    if (first := _shown(life)) is None:
        return
    shown, life.near = [first], _about(first.words)
    if chance.random() < 0.25:
        calm = False
        shown += [second] if (second := _shown(life)) is not None else []
    elif chance.random() < 0.3:
        calm = False
        for _ in range(chance.randint(1, 3)):
            life.act()
    beside = [life.advance] if chance.random() < 0.15 else []
    given = [(one.again(life), _at_moments(life, 0.3, 0.3)) for one in shown]
    life.changes = True
    if len(shown) > 1 or beside:
        life.count("at once")
        runs = life.run_at_once(given, beside)
        calm = False
    else:
        runs = [life.run(*given[0])]
    life.changes = False
    for one, done in zip(shown, runs, strict=True):
        judge(life, one.name, one.command, one.dry, done, calm)
    for one, done, (words, _) in zip(shown, runs, given, strict=True):
        if done.answer.was_killed and not life.faults:
            life.count(f"{one.name}: killed")
            repeated = life.run(words, _at_moments(life, 0.1))
            judge(life, one.name, one.command, one.dry, repeated, calm=False)
            _ends_the_work(life, one.name, done, repeated, is_alone=len(shown) == 1)
    life.near = None


def _shown(life: Life) -> Shown | None:
    """Draw a command, and run it without --yes. Return None if there is no change to make."""
    chance = life.chance
    commands = {**COMMANDS, **(OF_FILES if life.has_files else {})}
    name = chance.choices([*commands], [weight for weight, _ in commands.values()])[0]
    if at_a_mark(life.state()) and chance.random() < 0.3:
        name = "claim"
    elif life.no_ack > 0.5 and chance.random() < 0.2:
        name = "prune"
    elif life.has_files and any(stream == REPAIRED for stream, _ in life.known) and chance.random() < 0.3:
        name = "where"
    chosen = commands[name][1]
    if chosen.may and chance.random() < 0.45:
        life.rest()
    words = chosen.draw(life, life.state())
    if words is None:
        return None
    dry = life.run(words, _at_moments(life, 0.15, 0.2 if chosen.at_once else 0))
    life.stdin = ""
    life.count(f"{name}: {dry.answer.code}")
    if name == "export":
        note_file(life, dry)
    if chosen.at_once:
        judge(life, name, chosen, dry, dry, calm=False)
        return None
    if chosen.may and dry.answer.said is not None:
        return Shown(name, chosen, words, dry)
    judge(life, name, chosen, dry, None, calm=True)
    return None


def _about(words: Words) -> tuple[str, str] | None:
    """Return the first stream and the group that a command names."""
    at = words.index("--group") if "--group" in words else 0
    return (words[words.index("groups") + 2 if "groups" in words else 1], words[at + 1]) if at else None


def _at_moments(life: Life, disturbed: float, killed: float = 0.0) -> list[tuple[int, Callable[[], None]]]:
    """Draw what happens before which requests of a command."""
    found: list[tuple[int, Callable[[], None]]] = []
    if life.chance.random() < disturbed:
        found = [(life.chance.randint(2, 25), life.act) for _ in range(life.chance.randint(1, 3))]
    if life.near is not None and life.chance.random() < 2 * disturbed:  # behind what it lists
        found += [(life.chance.randint(8, 12), life.take) for _ in range(2)]
    if life.chance.random() < killed:
        found.append((life.chance.randint(2, 20), _die))
    return found


def _die() -> None:
    raise Killed


def _without(words: Sequence[str], bounds: Sequence[str]) -> list[str]:
    """Return the words of a command without the options that its bounds replace."""
    replaced = {word.partition("=")[0] for word in bounds if word.startswith("--")} - {"--only"}
    kept: list[str] = []
    skips = False
    for word in words:
        name = word.partition("=")[0]
        if skips:
            skips = False
        elif name in replaced:
            skips = "=" not in word
        else:
            kept.append(word)
    return kept


def _ends_the_work(life: Life, name: str, killed: Run, repeated: Run, is_alone: bool) -> None:
    """A command that was killed is repeated: it ends the work, or says why there is none."""
    answer, words = repeated.answer, repeated.answer.words
    if answer.code not in (0, 1, 3):
        life.fault(f"{name}: repeated after a kill, it ends with {answer.code}: {answer.text}")
    between = change(killed.segments[0].before, repeated.segments[-1].after)
    may_end = name in ("copy", "import") and is_alone and "--last" not in words and words[1] not in between.removed
    if may_end and answer.code and target_of(words) not in killed.segments[0].before.all_streams:
        life.fault(f"{name}: repeated after a kill, it is refused: {answer.text}")


def _end(life: Life) -> None:
    """Let all queries read to the end, and judge."""
    life.tell("the end")
    for _ in range(2):
        life.server.core.clock.sleep(_DAY / 24)
        for query in life.queries:
            query.kill()
            query.error = None
            for _ in range(60):
                result = query.advance()
                if result in ("idle", "error"):
                    break
            life.tell(f"query {query.name}: {result} {query.error or ''}")
            if result == "error":
                life._judge_error(query)
            elif result != "idle":
                life.fault(f"query {query.name} never comes to its end")
    at_the_end(life)


def lives(given: tuple[int, int]) -> tuple[Counter[str], list[tuple[int, str]]]:
    seed, runs = given
    server, counts, faults = ProcessServer(), Counter[str](), []
    with product(server):
        for one in range(seed, seed + runs):
            life = live(server, one)
            counts.update(life.counts)
            faults += [(one, text) for text in life.faults]
    return counts, faults
