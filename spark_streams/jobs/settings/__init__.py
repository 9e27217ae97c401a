"""A job's configuration file, and what its Spark session is given."""
