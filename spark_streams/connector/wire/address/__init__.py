"""Addresses and logins: URLs, users, TLS, timeouts."""
