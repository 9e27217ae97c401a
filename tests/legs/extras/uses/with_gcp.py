"""docs/guide/security.md: the login of Google Cloud. What the account would be given is put in its place."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import google.auth

from spark_streams.connector.options.access_options import server_of

account = SimpleNamespace(valid=True, token="of-the-account")
with mock.patch.object(google.auth, "default", return_value=(account, "project")):
    identity = server_of({"url": "redis://h", "credentialProvider": "gcp_login:provider"}, "source").identity
    assert identity is not None
    print("login:", *identity.credentials())
