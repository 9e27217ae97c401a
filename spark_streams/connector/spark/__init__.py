"""What Spark, from 4.0 to 4.3, expects and gives, and how its versions differ.
docs/reference/compatibility.md describes the consequences for users.
"""
