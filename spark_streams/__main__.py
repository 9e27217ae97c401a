"""`python -m spark_streams`: check this installation. Exit code 1 if it cannot work, 2 if arguments are given."""

from __future__ import annotations

import sys

from spark_streams.connector.spark.installation import check_installation


def main() -> int:
    """Print versions and states, and a sentence for each problem. Return the exit code."""
    if len(sys.argv) > 1:
        print("python -m spark_streams only checks the installation. For commands: rstream --help", file=sys.stderr)
        return 2
    findings = check_installation()
    first, second = (max(len(line[column]) for line in findings.lines) for column in (0, 1))
    for component, state, where in findings.lines:
        print(f"{component:<{first}}  {state:<{second}}  {where}")
    for problem in findings.problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if findings.problems else 0


if __name__ == "__main__":
    sys.exit(main())
