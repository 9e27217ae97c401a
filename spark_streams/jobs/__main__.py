"""The script that `rstream run --submit` passes to spark-submit: `__main__.py JOB --config FILE …`."""

import sys
from pathlib import Path

from spark_streams.jobs.start import main

if __name__ == "__main__":
    if sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]  # Python searches a script's folder first, and the files of this one are not top-level modules
    main(sys.argv.pop(1), settings_passed=True)
