"""Dead letters: entries that could not be processed, and how they are retried or sent back."""
