"""The jobs, a program each. The package has this folder as spark_streams.jobs.programs, for `rstream run`."""
