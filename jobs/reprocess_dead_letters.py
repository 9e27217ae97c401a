"""Redrive dead letters: the selected ones become entries again, each once, at a set rate.

The job runs on the driver alone, because the server takes most of the time. It needs no executor.
"""

from spark_streams.jobs import Job, Letters, Program, Redrive


def reprocess_dead_letters(job: Job) -> None:
    letters = Letters(job)  # [letters]
    redrive = Redrive(job, letters)  # [redrive]
    job.plan(letters, redrive)  # with --check, the job ends here

    redrive.run()
    job.summarize(redrive)


PROGRAM = Program("reprocess_dead_letters", __doc__, reprocess_dead_letters, (Letters, Redrive))

if __name__ == "__main__":
    PROGRAM.main()
