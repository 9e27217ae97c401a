"""Who connects to Memorystore with IAM: the account that the program runs as (Application Default Credentials).

pip install 'spark-streams[gcp]'
.option("credentialProvider", "gcp_login:provider")     # this file, beside the program, or with --py-files
"""

import threading

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
            if not self.account.valid:  # so it is from some minutes before its token ends
                self.account.refresh(Request())
            return "default", self.account.token


def provider() -> Iam:
    return Iam()
