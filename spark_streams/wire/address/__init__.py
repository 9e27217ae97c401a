"""Where the server is and who connects: URLs, users, TLS, timeouts."""
