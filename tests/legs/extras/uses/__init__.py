"""What each extra is for, as a program that an environment with that extra alone runs."""
