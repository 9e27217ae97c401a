"""Stream to a table by date, then trim: entries that are archived and acknowledged by every group leave the stream.

The job has its own group, which reads from the first entry on. It acknowledges an entry when its batch is in the table
and in Spark's commit log. Only entries that every group has acknowledged are trimmed, this group included. So every
trimmed entry is archived byte for byte, and no other group still needs it. A batch that is run again replaces its own
files.
"""

from spark_streams.jobs import Archive, ArchivedGroup, Job, Program, Query, Source, Trim


def archive(job: Job) -> None:
    source = Source(job)  # [source]
    table = Archive(job)  # [table]
    trim = Trim(job, source)  # [trim]
    group = ArchivedGroup(job, source)
    query = Query(job, source, table, group, trim)  # [job]

    rows = table.rows(source.read(job.session(), table.SCHEMA, startingOffsets="earliest"))
    job.plan(query, table, trim)  # with --check, the job ends here

    query.run(rows, table.write, on_poll=trim.trim_if_due)
    trim.trim()
    job.summarize(query, table, trim)


PROGRAM = Program("archive", __doc__, archive, (Source, Archive, ArchivedGroup, Trim, Query))

if __name__ == "__main__":
    PROGRAM.main()
