"""Execute a notebook of examples/notebooks. `python -m tests.legs.notebooks.execution` keeps all outputs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[3] / "examples" / "notebooks"
SECONDS = 300  # for one cell on a busy machine


def executed(path: Path, home: Path) -> Any:
    """Execute a copy of the notebook in the folder `home`, and return it. Raises CellExecutionError.

    The kernel runs in this Python. Its temporary files, and so its checkpoints, are below `home`, as is the folder of
    IPython: HOME may not exist.
    """
    notebook = nbformat.read(path, as_version=4)
    environment = {name: value for name, value in os.environ.items() if name not in ("RSTREAM_URL", "XDG_RUNTIME_DIR")}
    environment |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "COLUMNS": "120",
    }
    client = NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(home)}}
    )
    client.execute(env=environment)
    return notebook


def cleaned(notebook: Any) -> Any:
    """Return the notebook without what differs from machine to machine: stderr (the JVM's log), times, colours."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            printed = "".join(one.text for one in cell.outputs if one.get("name") == "stdout")
            printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
            drawn = [one for one in cell.outputs if one.output_type != "stream"]
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
            cell.outputs += drawn
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


# What differs from run to run: ids of queries, ages and durations, all other numbers.
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DURATION = r"\d[\d,.]* (?:ms|s|m|h|d)\b"
_NUMBER = r"\d[\d,.]*"


def outputs(notebook: Any) -> list[str]:
    """Return the text of each code cell's outputs, as comparable as two runs of one program are."""
    return [
        comparable("".join(map(_text, cell.outputs))) for cell in cleaned(notebook).cells if cell.cell_type == "code"
    ]


def comparable(text: str) -> str:
    """Return the text with `0` for each of these, and one blank for each run of blanks."""
    text = re.sub(f"{_UUID}|(?:{_DURATION} ?)+", "0 ", text)
    return re.sub(r"\s+", " ", re.sub(_NUMBER, "0", text))


def _text(output: Any) -> str:
    return str(output.get("text", "")) + str(output.get("data", {}).get("text/html", ""))


def main() -> None:
    """Execute all notebooks and write their outputs into them."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as home:
            notebook = cleaned(executed(path, Path(home)))
        nbformat.write(notebook, path)
        print(path.name)


if __name__ == "__main__":
    main()
