"""The job aggregate for spark-submit. Its code is in spark_streams/jobs/aggregate.py."""

from spark_streams.jobs.start import main

if __name__ == "__main__":
    main("aggregate")
