"""The programs of examples/identity, each with what its cloud would answer; where its package is installed."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "identity"


def provider_of(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}_login.py"))["provider"]()


@pytest.mark.parametrize("service", ["elasticache", "memorydb"])
def test_aws_signs_a_request_to_connect_as_the_user(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3", reason="pip install 'spark-streams[aws]'")
    for name, value in (("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "key"), ("AWS_REGION", "r-1"),
                        ("STREAMS_USER", "app"), ("STREAMS_CACHE", "mine"), ("STREAMS_SERVICE", service)):  # fmt: skip
        monkeypatch.setenv(name, value)
    provider = provider_of("aws")
    user, token = provider.get_credentials()
    parts = urlsplit(f"https://{token}")
    told = {name: values[0] for name, values in parse_qs(parts.query).items()}
    assert (user, parts.netloc, parts.path) == ("app", "mine", "/")
    assert (told["Action"], told["User"], told["X-Amz-Expires"]) == ("connect", "app", "900")
    assert f"/r-1/{service}/aws4_request" in told["X-Amz-Credential"]
    assert provider.get_credentials() == (user, token), "one token, as long as it is good"


def test_azure_asks_for_a_token_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = pytest.importorskip("azure.identity", reason="pip install 'spark-streams[azure]'")
    jwt = pytest.importorskip("jwt")
    asked: list[object] = []
    token = jwt.encode({"oid": "app", "exp": 4_000_000_000, "iat": 1}, "x" * 32, algorithm="HS256")

    def get_token(self: object, *scopes: str, **more: object) -> object:
        asked.append(scopes)
        return SimpleNamespace(token=token)

    monkeypatch.setattr(identity.DefaultAzureCredential, "get_token", get_token)
    provider = provider_of("azure")
    assert provider.get_credentials() == ("app", token)
    assert set(asked) == {("https://redis.azure.com/.default",)}


def test_gcp_refreshes_the_accounts_token(monkeypatch: pytest.MonkeyPatch) -> None:
    auth = pytest.importorskip("google.auth", reason="pip install 'spark-streams[gcp]'")
    pytest.importorskip("requests")

    class Account:
        valid, token = False, ""

        def refresh(self, request: object) -> None:
            self.valid, self.token = True, self.token + "t"

    account = Account()
    monkeypatch.setattr(auth, "default", lambda scopes: (account, "project"))
    provider = provider_of("gcp")
    assert provider.get_credentials() == ("default", "t")
    assert provider.get_credentials() == ("default", "t")
    account.valid = False
    assert provider.get_credentials() == ("default", "tt")
