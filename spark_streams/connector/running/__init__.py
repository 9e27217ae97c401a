"""Run a query to its end: signals that stop it, its end between two batches, errors as one line."""
