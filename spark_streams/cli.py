"""Door: `rstream …`."""

from spark_streams.operations.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
