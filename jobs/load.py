"""The job load for spark-submit. Its code is in spark_streams/jobs/load.py."""

from spark_streams.jobs.start import main

if __name__ == "__main__":
    main("load")
