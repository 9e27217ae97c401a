"""What a folder of tests needs of Java: the jars that its pom.xml names, and the classes of its programs.

They are in `.servers/NAME` of the clone, which git ignores.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.servers.jars import HOME, copy_jars


def class_path(folder: Path) -> list[Path]:
    """Return the class path of the programs of a folder; the first time fetch and compile. Raises NotThereError."""
    home, sources = HOME / folder.name, sorted(folder.glob("*.java"))
    made = "".join(file.read_text() for file in (folder / "pom.xml", *sources))
    done = home / "done"
    if not done.is_file() or done.read_text() != made:
        shutil.rmtree(home, ignore_errors=True)
        (home / "classes").mkdir(parents=True)
        copy_jars(folder / "pom.xml", home / "jars")
        subprocess.run(["javac", "-d", home / "classes", "-cp", f"{home / 'jars'}/*", *sources], check=True)
        done.write_text(made)
    return [home / "classes", *sorted((home / "jars").glob("*.jar"))]
