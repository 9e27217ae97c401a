"""Files into a stream: one entry per row, in the order of the file. Columns become fields; nulls are left out.

A load that was killed or stopped continues where it ended, and writes each row once.
"""

from spark_streams.jobs import Files, Job, Load, Program


def load(job: Job) -> None:
    files = Files(job)  # [input] and [schema]
    loading = Load(job, files)  # [sink] and [job]

    spark = job.session()
    rows = files.read(spark)
    loading.resume(spark)
    job.plan(files, loading)  # with --check, the job ends here

    loading.run(rows)
    job.summarize(loading)


PROGRAM = Program("load", __doc__, load, (Files, Load))

if __name__ == "__main__":
    PROGRAM.main()
