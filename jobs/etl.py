"""Stream to tables: read a consumer group, type and check every row, and write good rows to tables and streams.

Bad rows go to a dead-letter stream with the reason. A batch that is run again replaces the rows of its first run, and
does not send its dead letters a second time.
"""

from spark_streams.jobs import DeadLetters, Job, Judged, Outputs, Program, Query, Rules, Source


def etl(job: Job) -> None:
    source = Source(job)  # [source]
    rules = Rules(job, source)  # [columns], [schema] or [decode], and [[rule]]
    outputs = Outputs(job, rules)  # [sql], [table] and [[output]]
    dead_letters = DeadLetters(job, source)  # [dead_letters]
    query = Query(job, source, outputs, dead_letters)  # [job]

    rows = rules.rows(source.read(job.session(), rules.schema()))
    outputs.check(rules.good(rows))
    job.plan(query, rules, outputs, dead_letters)  # with --check, the job ends here

    def write(batch: Judged, number: int) -> None:
        outputs.write(batch, number)
        query.count_dead_letters(dead_letters.write(batch))

    query.run(*rules.judging(rows, write, outputs.is_one_table))
    job.summarize(query, rules, outputs, dead_letters)


PROGRAM = Program("etl", __doc__, etl, (Source, Rules, Outputs, DeadLetters, Query))

if __name__ == "__main__":
    PROGRAM.main()
