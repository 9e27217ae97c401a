"""Each extra of pyproject.toml alone in a fresh environment."""
