"""`rstream copy`, `rstream export`, `rstream import`."""
