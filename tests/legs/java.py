"""What a folder of tests needs of Java: the jars that its pom.xml names, and the classes of its programs.

They are in `.servers/NAME` of the clone, which git ignores.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HOME = Path(__file__).resolve().parents[2] / ".servers"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


class NotThereError(Exception):
    """Why it cannot be had, in a sentence."""


def class_path(folder: Path) -> list[Path]:
    """Return the class path of the programs of a folder; the first time fetch and compile. Raises NotThereError."""
    home, sources = HOME / folder.name, sorted(folder.glob("*.java"))
    made = "".join(file.read_text() for file in (folder / "pom.xml", *sources))
    done = home / "done"
    if not done.is_file() or done.read_text() != made:
        shutil.rmtree(home, ignore_errors=True)
        (home / "classes").mkdir(parents=True)
        jars = f"-DoutputDirectory={home / 'jars'}"
        fetch("mvn", "--quiet", "--batch-mode", "--file", folder / "pom.xml", _COPY, jars, "-DincludeScope=runtime")
        subprocess.run(["javac", "-d", home / "classes", "-cp", f"{home / 'jars'}/*", *sources], check=True)
        done.write_text(made)
    return [home / "classes", *sorted((home / "jars").glob("*.jar"))]


def fetch(*command: object, cwd: Path | None = None) -> None:
    """Run a tool that fetches something. Raises NotThereError, also if the tool is missing."""
    try:
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=cwd)
    except FileNotFoundError:
        raise NotThereError(f"{command[0]} is missing") from None
    if ran.returncode:
        raise NotThereError(f"{command[0]} failed: {(ran.stdout + ran.stderr)[-2000:]}")
