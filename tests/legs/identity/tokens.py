"""Credential providers as users write them: of tokens that a file holds in place of a cloud's token service."""

from __future__ import annotations

import os
from pathlib import Path

from redis import CredentialProvider

FILE = "RSTREAM_TEST_TOKEN"


class Tokens(CredentialProvider):
    """The token of now, as a client of the cloud's would have it in memory."""

    def get_credentials(self) -> tuple[str, str]:
        return "app", Path(os.environ[FILE]).read_text().strip()


def provider() -> CredentialProvider:
    return Tokens()


def failing() -> CredentialProvider:
    raise RuntimeError("no region is set")


class Away(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        raise TimeoutError("the token service does not answer")


def number() -> int:
    return 7
