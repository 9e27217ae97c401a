"""Stream to stream: read a consumer group, group and aggregate its rows, also by windows of event time.

The job appends every group that a batch has changed, or every window when it is final.
"""

from spark_streams.jobs import Groups, Job, Program, Query, Sink, Source


def aggregate(job: Job) -> None:
    source = Source(job)  # [source]
    groups = Groups(job)  # [columns] or [schema], and [aggregate]
    sink = Sink(job)  # [sink]
    query = Query(job, source, sink)  # [job]

    changed = groups.aggregate(source.read(job.session(), groups.schema()))
    job.plan(query, groups, sink)  # with --check, the job ends here

    # Spark has no update mode for Python sinks, so the job appends the changed groups of a batch.
    query.run(changed, sink.write, groups.output_mode)
    job.summarize(query, sink)


PROGRAM = Program("aggregate", __doc__, aggregate, (Source, Groups, Sink, Query))

if __name__ == "__main__":
    PROGRAM.main()
