"""One connection to one server: bytes out, replies in, retries, named errors."""
