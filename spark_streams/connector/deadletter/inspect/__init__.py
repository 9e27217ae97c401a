"""Read dead-letter streams without changing them."""
