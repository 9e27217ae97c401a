"""Users of the console, and attempts to log in."""
