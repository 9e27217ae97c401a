"""Stop a process that a test or a measurement has started."""

from __future__ import annotations

import subprocess


def stop(process: subprocess.Popen[bytes], seconds: float = 5) -> None:
    """Send SIGTERM and wait for the end; after these seconds send SIGKILL."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
