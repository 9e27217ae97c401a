"""Commands on connections, transactions, persistence and the server itself."""
