"""Login to Azure Managed Redis or Azure Cache for Redis with Entra ID, as DefaultAzureCredential finds it.

pip install './spark-streams[azure]'
.option("credentialProvider", "azure_login:provider")     # put this file next to the program, or use --py-files
"""

from redis import CredentialProvider
from redis_entraid.cred_provider import create_from_default_azure_credential

PATIENCE = {"connection_timeout": 5, "read_timeout": 5, "retry_total": 1}  # seconds; azure-core: 300, ten times


def provider() -> CredentialProvider:
    provider = create_from_default_azure_credential(scopes=("https://redis.azure.com/.default",), app_kwargs=PATIENCE)
    provider.on_next(lambda token: None)  # each new connection fetches the current token itself
    return provider
