"""`python -m spark_streams`: whether this installation can work, on a few lines; exit code 1 where it cannot."""

from __future__ import annotations

import sys

from spark_streams.spark.installation import look


def main() -> int:
    """Print what is found, and a sentence for each thing that is wrong."""
    found = look()
    first, second = (max(len(line[at]) for line in found.lines) for at in (0, 1))
    for what, state, where in found.lines:
        print(f"{what:<{first}}  {state:<{second}}  {where}")
    for problem in found.problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
