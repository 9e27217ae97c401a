"""Carrying out what an error message or a log line names as its remedy."""

from __future__ import annotations

import re
import shlex

from click.testing import CliRunner

from spark_streams.cli import main
from tools.servers.server import Server


def carry_out(server: Server, message: str, *more: str) -> None:
    """Run the one `rstream` command that stands in the message, in parentheses. more: further words of it."""
    [command] = re.findall(r"\(rstream ([^()]+)\)", message)
    ran = CliRunner().invoke(main, [*shlex.split(command), *more, "--url", server.url])
    assert ran.exit_code == 0, ran.output


def hset_of(message: str) -> list[str]:
    """Return key, field and value of the first HSET of the message, as a shell or redis-cli would split it."""
    [command, *_] = re.findall(r"HSET (.+?) (?:to go on|and start the query again)", message)
    key, field, value = shlex.split(command)
    return [key, field, value]
