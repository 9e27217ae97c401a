"""What is measured each minute of a soak: processes, server, files."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import redis

from tools.soak.configs import ARCHIVE, DEAD, ETL, STREAM
from tools.soak.job_process import JobProcess

_KIB = 1024
_MIB = 1_048_576


def measure(client: redis.Redis, jobs: Iterable[JobProcess], folder: Path) -> dict[str, float]:
    """Return the figures by name. Memory is in MB; a job without a living process has none."""
    figures: dict[str, float] = {}
    for job in jobs:
        figures |= {f"{job.name}: {name}": value for name, value in _of_processes(job.processes()).items()}
        figures[f"{job.name}: checkpoint files"] = _files(folder / "checkpoints" / job.name)
    figures |= _of_server(client)
    figures["table: data files"] = len(list((folder / "table").glob("*.parquet")))
    figures["table: log files"] = _files(folder / "table" / "_delta_log")
    figures["archive: files"] = _files(folder / "archive")
    return figures


def _of_processes(processes: Mapping[int, str]) -> dict[str, float]:
    figures: dict[str, float] = defaultdict(float)
    for pid, kind in processes.items():
        try:
            figures[f"{kind} memory MB"] += _proportional_memory(pid)
            figures["threads"] += len(os.listdir(f"/proc/{pid}/task"))
            figures["file handles"] += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:  # it has ended
            continue
        if kind == "jvm":
            heap = _live_heap(pid)
            if heap is not None:
                figures["jvm live heap MB"] = heap
    return dict(figures)


def _proportional_memory(pid: int) -> float:
    """Return its share of memory in MB: pages that forked processes have in common are shared out among them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / _KIB
    raise OSError(f"process {pid} has no Pss")


def _live_heap(pid: int) -> float | None:
    """Return what a full collection leaves of the heap, in MB. None: the process ends, or does not answer."""
    command = ["jcmd", str(pid), "GC.class_histogram"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    words = answer.stdout.splitlines()[-1].split() if answer.stdout else []
    return int(words[2]) / _MIB if len(words) == 3 and words[0] == "Total" else None


def _of_server(client: redis.Redis) -> dict[str, float]:
    memory: Any = client.info("memory")
    figures: dict[str, float] = {
        "server: memory MB": memory["used_memory"] / _MIB,
        "server: resident MB": memory["used_memory_rss"] / _MIB,
        "server: keys": float(client.dbsize()),
        "server: clients": float(client.info("clients")["connected_clients"]),
        "stream: entries": float(client.xlen(STREAM)),
        "dead letters": float(client.xlen(DEAD)),
    }
    groups: Any = client.xinfo_groups(STREAM) if client.exists(STREAM) else []
    for group in groups:
        name = group["name"].decode()
        if name in (ETL, ARCHIVE):
            figures[f"{name}: pending"] = group["pending"]
            figures[f"{name}: consumers"] = group["consumers"]
            if group["lag"] is not None:
                figures[f"{name}: lag"] = group["lag"]
    return figures


def _files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))
