"""One connection to one server: requests, replies, retries, named errors."""
