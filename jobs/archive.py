"""The job archive for spark-submit. Its code is in spark_streams/jobs/archive.py."""

from spark_streams.jobs.start import main

if __name__ == "__main__":
    main("archive")
