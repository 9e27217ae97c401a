"""One logical stream over several: their names, which of them a key goes to, and what the server knows of it."""
