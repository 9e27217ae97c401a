"""Who connects to Azure Managed Redis (or Azure Cache for Redis) with Entra ID: a managed identity, or whatever
DefaultAzureCredential finds.

    pip install 'spark-streams[azure]'
    .option("credentialProvider", "azure_login:provider")     # this file, beside the program, or with --py-files
"""

from redis import CredentialProvider
from redis_entraid.cred_provider import create_from_default_azure_credential


def provider() -> CredentialProvider:
    provider = create_from_default_azure_credential(scopes=("https://redis.azure.com/.default",))
    provider.on_next(lambda token: None)  # whoever connects asks for the token of now: it need not be brought
    return provider
