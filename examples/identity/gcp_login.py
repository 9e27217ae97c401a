"""Login to Memorystore with IAM, with the account of the program (Application Default Credentials).

pip install './spark-streams[gcp]'
.option("credentialProvider", "gcp_login:provider")     # put this file next to the program, or use --py-files
"""

import threading
from functools import partial

import google.auth
from google.auth.transport.requests import Request
from redis import CredentialProvider

SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class Iam(CredentialProvider):
    def __init__(self) -> None:
        self.account, _ = google.auth.default(scopes=[SCOPE])
        self.lock = threading.Lock()

    def get_credentials(self) -> tuple[str, str]:
        with self.lock:
            if not self.account.valid:  # false from some minutes before the token expires
                self.account.refresh(partial(Request(), timeout=10))
            return "default", self.account.token


def provider() -> Iam:
    return Iam()
