"""The job reprocess_dead_letters for spark-submit. Its code is in spark_streams/jobs/reprocess_dead_letters.py."""

from spark_streams.jobs.start import main

if __name__ == "__main__":
    main("reprocess_dead_letters")
