"""The entry that `rstream run --submit` gives to spark-submit: `__main__.py JOB --config FILE …`."""

import sys
from pathlib import Path

from spark_streams.jobs.start import main

if __name__ == "__main__":
    if sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]  # where a script lies Python looks first: the files beside this one are no modules of their own
    main(sys.argv.pop(1), spark_is_told=True)
