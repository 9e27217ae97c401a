"""Run a life: who does something next, and which command, until its end is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tools.lives.commands import COMMANDS
from tools.lives.judge import at_the_end, judge
from tools.lives.life import Life, Run
from tools.lives.processes import on, product
from tools.simulation.actor import Killed
from tools.simulation.in_process.server import ProcessServer

_STEPS = 24
_DAY = 86_400


def live(server: ProcessServer, seed: int, tell: Callable[[str], None] = lambda _: None) -> Life:
    """Run one life on a patched product. Its faults are what must not be."""
    life = Life(server, seed, tell)
    with on(life.place):
        for _ in range(_STEPS):
            life.act() if life.chance.random() < 0.65 else command(life)
            if life.faults:
                return life
        _end(life)
    return life


def command(life: Life) -> None:
    """Run a command: its dry run, and then the change, maybe interrupted or killed."""
    chance = life.chance
    name = chance.choices([*COMMANDS], [weight for weight, _ in COMMANDS.values()])[0]
    chosen = COMMANDS[name][1]
    if chosen.may and chance.random() < 0.45:
        life.rest()
    words = chosen.draw(life, life.state())
    if words is None:
        return
    dry = life.run(words, _at_moments(life, 0.15))
    life.count(f"{name}: {dry.answer.code}")
    done = None
    calm = True
    if chosen.may and dry.answer.said is not None:
        if chance.random() < 0.3:
            calm = False
            for _ in range(chance.randint(1, 3)):
                life.act()
        bounds = dry.answer.said.get("bounds", []) if chance.random() < 0.8 else []
        again = [*_without(words, bounds), *bounds, "--yes"]
        done = life.run(again, _at_moments(life, 0.3, 0.3))
        judge(life, name, chosen, dry, done, calm)
        if done.answer.was_killed and not life.faults:
            life.count(f"{name}: killed")
            repeated = life.run(again, _at_moments(life, 0.1))
            judge(life, name, chosen, dry, repeated, calm=False)
            _ends_the_work(life, name, done, repeated)
    else:
        judge(life, name, chosen, dry, None, calm)


def _at_moments(life: Life, disturbed: float, killed: float = 0.0) -> list[tuple[int, Callable[[], None]]]:
    """Draw what happens before which requests of a command."""
    found: list[tuple[int, Callable[[], None]]] = []
    if life.chance.random() < disturbed:
        found = [(life.chance.randint(2, 25), life.act) for _ in range(life.chance.randint(1, 3))]
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


def _ends_the_work(life: Life, name: str, killed: Run, repeated: Run) -> None:
    """A command that was killed is repeated: it ends the work, or says why there is none."""
    if repeated.answer.code not in (0, 1, 3):
        life.fault(f"{name}: repeated after a kill, it ends with {repeated.answer.code}: {repeated.answer.text}")


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
