"""docs/guide/security.md: the login of Azure. What Entra ID would answer is put in its place."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import azure.identity
import jwt

from spark_streams.connector.options.access_options import server_of

answer = jwt.encode({"oid": "app", "exp": 4_000_000_000, "iat": 1}, "x" * 32, algorithm="HS256")
answers = mock.Mock(return_value=SimpleNamespace(token=answer))
with mock.patch.object(azure.identity.DefaultAzureCredential, "get_token", answers):
    identity = server_of({"url": "redis://h", "credentialProvider": "azure_login:provider"}, "source").identity
    assert identity is not None
    user, token = identity.credentials()
    print("login:", user, token == answer)
