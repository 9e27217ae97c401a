"""What differs between the Sparks that this runs on, 4.0 to 4.3: one file a difference, found by what a Spark has, not
by its number, because vendors carry features back. docs/reference/compatibility.md says what follows for a user.
"""
