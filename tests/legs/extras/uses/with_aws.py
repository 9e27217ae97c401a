"""docs/guide/security.md: the login of AWS. Signing asks nobody; the account is made up."""

from __future__ import annotations

import os

from spark_streams.connector.options.access_options import server_of

os.environ |= {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "r-1"}
os.environ |= {"STREAMS_USER": "app", "STREAMS_CACHE": "mine", "STREAMS_SERVICE": "elasticache"}
identity = server_of({"url": "redis://h", "credentialProvider": "aws_login:provider"}, "source").identity
assert identity is not None
user, token = identity.credentials()
print("login:", user, token.partition("?")[0], "Action=connect" in token)
