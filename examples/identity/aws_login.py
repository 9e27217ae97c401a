"""Login to ElastiCache or MemoryDB with IAM: a token that this module signs itself, valid for 15 minutes.

    pip install './spark-streams[aws]'
    .option("credentialProvider", "aws_login:provider")     # put this file next to the program, or use --py-files

The AWS settings (a role, a profile, variables) name the account. STREAMS_USER and STREAMS_CACHE name the user and the
cache (its ID, in lower case), AWS_REGION the region. Set STREAMS_SERVICE=memorydb for MemoryDB, and
STREAMS_SERVERLESS=true for ElastiCache Serverless.
"""

import os
import time
from urllib.parse import urlencode

import boto3
import botocore.session
from botocore.config import Config
from botocore.model import ServiceId
from botocore.signers import RequestSigner
from redis import CredentialProvider

GOOD_FOR = 900  # seconds, the maximum that AWS accepts
NEW_AFTER = 300  # seconds: a clock may be wrong, and a refused login is tried again
PATIENCE = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})  # botocore: 60 s, five times


class Iam(CredentialProvider):
    def __init__(self) -> None:
        self.user, self.cache = os.environ["STREAMS_USER"], os.environ["STREAMS_CACHE"]
        service, region = os.environ.get("STREAMS_SERVICE", "elasticache"), os.environ["AWS_REGION"]
        settings = botocore.session.get_session()
        settings.set_default_client_config(PATIENCE)
        session = boto3.Session(region_name=region, botocore_session=settings)
        self.signer = RequestSigner(
            ServiceId(service), region, service, "v4", session.get_credentials(), session.events
        )
        self.region = region
        self.token, self.signed = "", float("-inf")

    def get_credentials(self) -> tuple[str, str]:
        if time.monotonic() - self.signed > NEW_AFTER:
            query = {"Action": "connect", "User": self.user}
            if os.environ.get("STREAMS_SERVERLESS"):
                query["ResourceType"] = "ServerlessCache"
            request = {
                "method": "GET",
                "url": f"https://{self.cache}/?{urlencode(query)}",
                "body": {},
                "headers": {},
                "context": {},
            }
            url = self.signer.generate_presigned_url(request, "connect", GOOD_FOR, self.region)
            self.token, self.signed = url.removeprefix("https://"), time.monotonic()
        return self.user, self.token


def provider() -> Iam:
    return Iam()
