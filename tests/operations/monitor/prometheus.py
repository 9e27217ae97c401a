"""A real Prometheus for tests, and its promtool: scripts/_setup.sh fetches both. Where they cannot be had, what needs
them is skipped and says so."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.servers.server import free_port
from tools.waiting import until

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no prometheus on this machine: what it makes of metrics, rules and the dashboard did not run",
)


def promtool(*words: str, given: str | None = None) -> str:
    """What it says, which must be that all is well."""
    ran = subprocess.run(["promtool", *words], input=given, capture_output=True, text=True, check=False, timeout=60)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    return said


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    url: str

    def ask(self, path: str, **given: str) -> Any:
        """The `data` of a reply. Raises urllib's errors, and AssertionError where it is none that can be used."""
        where = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(given)}"
        try:
            with urllib.request.urlopen(where, timeout=30) as reply:
                said = json.load(reply)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{given}: {error.read().decode()}") from error
        assert said["status"] == "success", said
        assert not said.get("warnings"), said
        return said["data"]

    def series(self, query: str) -> list[dict[str, Any]]:
        """The series of a query, as they are now."""
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def ranges(self, query: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series of a query over a time, in seconds since the epoch."""
        asked = {"query": query, "start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        found: list[dict[str, Any]] = self.ask("query_range", **asked)["result"]
        return found


@contextlib.contextmanager
def running_prometheus(folder: Path, target: str, rules: Path, every: str = "1s") -> Iterator[Prometheus]:
    """One that scrapes `target` (`host:port`) as job rstream, with these rules."""
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: {every}, evaluation_interval: {every}}}\nrule_files: ['{rules}']\n"
        f"scrape_configs: [{{job_name: rstream, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    promtool("check", "config", str(config))
    port = free_port()
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            found = Prometheus(f"http://127.0.0.1:{port}")
            until_it_answers(found, process, folder / "log")
            yield found
        finally:
            process.terminate()
            process.wait()


def until_it_answers(prometheus: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until Prometheus is ready."""

    def is_ready() -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{prometheus.url}/-/ready", timeout=5).close()
            return True
        return False

    until(is_ready, "Prometheus is not ready", 60, alive=lambda: process.poll() is None, log=log.read_text)
