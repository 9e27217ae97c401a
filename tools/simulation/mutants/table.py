"""All mutants."""

from __future__ import annotations

from tools.simulation.mutants.archive import ARCHIVE
from tools.simulation.mutants.groups import GROUPS
from tools.simulation.mutants.letters import LETTERS
from tools.simulation.mutants.modes import MODES
from tools.simulation.mutants.mutant import Mutant
from tools.simulation.mutants.refusals import REFUSALS
from tools.simulation.mutants.sink import LEASE, SINK
from tools.simulation.mutants.trigger import TRIGGER

MUTANTS: tuple[Mutant, ...] = (*TRIGGER, *GROUPS, *MODES, *LETTERS, *ARCHIVE, *SINK, *LEASE, *REFUSALS)
NAMED = {mutant.name: mutant for mutant in MUTANTS}
