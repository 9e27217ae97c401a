"""How commands of `rstream` end."""
