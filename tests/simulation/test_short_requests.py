"""Random lives on a server that takes few arguments: no request of the product has more, and nothing else changes."""

from __future__ import annotations

import pytest

from tests.seeds import seeds
from tools.servers.server import Server
from tools.simulation.soak import soak


@pytest.mark.random
def test_no_request_has_more_arguments_than_the_server_takes(server: Server) -> None:
    for tally in soak(server, seeds(5), additions=("arguments",)):
        assert [*tally.seeds] == []
