"""The programs of examples/identity, each with what its cloud would answer; where its package is installed."""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "identity"

AWS = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "r-1",
    "STREAMS_USER": "app", "STREAMS_CACHE": "mine",
}  # fmt: skip


def provider_of(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}_login.py"))["provider"]()


@pytest.mark.parametrize("service", ["elasticache", "memorydb"])
def test_aws_signs_a_request_to_connect_as_the_user(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3", reason="pip install 'spark-streams[aws]'")
    for name, value in {**AWS, "STREAMS_SERVICE": service}.items():
        monkeypatch.setenv(name, value)
    provider = provider_of("aws")
    user, token = provider.get_credentials()
    parts = urlsplit(f"https://{token}")
    told = {name: values[0] for name, values in parse_qs(parts.query).items()}
    assert (user, parts.netloc, parts.path) == ("app", "mine", "/")
    assert (told["Action"], told["User"], told["X-Amz-Expires"]) == ("connect", "app", "900")
    assert f"/r-1/{service}/aws4_request" in told["X-Amz-Credential"]
    assert "ResourceType" not in told
    now = time.monotonic()
    for passed, is_kept in ((290, True), (310, False)):
        monkeypatch.setattr(time, "monotonic", lambda passed=passed: now + passed)
        # The token of a second that is over is another one.
        monkeypatch.setattr(provider.signer, "generate_presigned_url", lambda *_: "https://next")
        assert (provider.get_credentials() == (user, token)) == is_kept, "900 s are good; a refused login has time"
    assert provider.get_credentials() == (user, "next")


def test_aws_names_a_serverless_cache_and_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3", reason="pip install 'spark-streams[aws]'")
    for name, value in {**AWS, "STREAMS_SERVERLESS": "true"}.items():
        monkeypatch.setenv(name, value)
    import botocore.session  # type: ignore[import-not-found, import-untyped, unused-ignore]

    made: list[Any] = []
    get_session = botocore.session.get_session
    monkeypatch.setattr(botocore.session, "get_session", lambda: made.append(get_session()) or made[0])
    _, token = provider_of("aws").get_credentials()
    assert parse_qs(urlsplit(f"https://{token}").query)["ResourceType"] == ["ServerlessCache"]
    config = made[0].get_default_client_config()
    assert (config.connect_timeout, config.read_timeout, config.retries) == (5, 10, {"total_max_attempts": 2})


def test_azure_asks_for_a_token_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = pytest.importorskip("azure.identity", reason="pip install 'spark-streams[azure]'")
    jwt = pytest.importorskip("jwt")
    asked: list[object] = []
    token = jwt.encode({"oid": "app", "exp": 4_000_000_000, "iat": 1}, "x" * 32, algorithm="HS256")

    def get_token(self: object, *scopes: str, **more: object) -> object:
        asked.append(scopes)
        return SimpleNamespace(token=token)

    options: dict[str, Any] = {}
    monkeypatch.setattr(identity.DefaultAzureCredential, "__init__", lambda self, **given: options.update(given))
    monkeypatch.setattr(identity.DefaultAzureCredential, "get_token", get_token)
    provider = provider_of("azure")
    assert options == {"authority": None, "connection_timeout": 5, "read_timeout": 5, "retry_total": 1}
    assert provider.get_credentials() == ("app", token)
    assert set(asked) == {("https://redis.azure.com/.default",)}


def test_gcp_refreshes_the_accounts_token(monkeypatch: pytest.MonkeyPatch) -> None:
    auth = pytest.importorskip("google.auth", reason="pip install 'spark-streams[gcp]'")
    pytest.importorskip("requests")

    class Account:
        valid, token = False, ""

        def refresh(self, request: Any) -> None:
            assert request.keywords == {"timeout": 10}
            self.valid, self.token = True, self.token + "t"

    account = Account()
    monkeypatch.setattr(auth, "default", lambda scopes: (account, "project"))
    provider = provider_of("gcp")
    assert provider.get_credentials() == ("default", "t")
    assert provider.get_credentials() == ("default", "t")
    account.valid = False
    assert provider.get_credentials() == ("default", "tt")
