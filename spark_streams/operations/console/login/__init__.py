"""Users of the console: passwords, attempts to log in, and OpenID Connect."""
