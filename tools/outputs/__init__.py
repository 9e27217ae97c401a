"""Random lives of outputs: jobs that write tables are killed at any change of a file and at any request."""
