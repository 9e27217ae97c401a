"""A job's configuration file, and the settings of its Spark session."""
