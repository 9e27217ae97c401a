"""Login to ElastiCache or MemoryDB with IAM: a token that this module signs itself, valid for 15 minutes.

    pip install './spark-streams[aws]'
    .option("credentialProvider", "aws_login:provider")     # put this file next to the program, or use --py-files

The AWS settings (a role, a profile, variables) name the account. STREAMS_USER and STREAMS_CACHE name the user and the
cache (its ID, in lower case), AWS_REGION the region. Set STREAMS_SERVICE=memorydb for MemoryDB.
"""

import os
import time
from urllib.parse import urlencode

import boto3
from botocore.model import ServiceId
from botocore.signers import RequestSigner
from redis import CredentialProvider

GOOD_FOR = 900  # seconds, the maximum that AWS accepts
NEW_AFTER = 600  # seconds


class Iam(CredentialProvider):
    def __init__(self) -> None:
        self.user, self.cache = os.environ["STREAMS_USER"], os.environ["STREAMS_CACHE"]
        service, region = os.environ.get("STREAMS_SERVICE", "elasticache"), os.environ["AWS_REGION"]
        session = boto3.Session(region_name=region)
        self.signer = RequestSigner(
            ServiceId(service), region, service, "v4", session.get_credentials(), session.events
        )
        self.region = region
        self.token, self.signed = "", float("-inf")

    def get_credentials(self) -> tuple[str, str]:
        if time.monotonic() - self.signed > NEW_AFTER:
            query = urlencode({"Action": "connect", "User": self.user})
            request = {
                "method": "GET",
                "url": f"https://{self.cache}/?{query}",
                "body": {},
                "headers": {},
                "context": {},
            }
            url = self.signer.generate_presigned_url(request, "connect", GOOD_FOR, self.region)
            self.token, self.signed = url.removeprefix("https://"), time.monotonic()
        return self.user, self.token


def provider() -> Iam:
    return Iam()
