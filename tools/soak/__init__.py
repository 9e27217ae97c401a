"""Hours of two jobs on one server: each minute measures what must stay flat, and the end counts every entry."""
