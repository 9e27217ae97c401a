"""How tests call a command of `rstream` within their own process."""

from __future__ import annotations

import inspect

from click.testing import CliRunner


def separate_runner() -> CliRunner:
    """A runner whose results have stdout and stderr apart. Before click 8.2 it mixes them unless it is told not to."""
    parameters = inspect.signature(CliRunner.__init__).parameters
    return CliRunner(**({"mix_stderr": False} if "mix_stderr" in parameters else {}))
