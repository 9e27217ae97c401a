"""Write dead letters: from failed entries of a query, and from rows that a user rejects."""
