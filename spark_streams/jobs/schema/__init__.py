"""The columns of a job, from its configuration or from a schema that others keep. Pure but for reading files."""
