"""docs/guide/monitoring.md: the metrics of the exporter, asked for as Prometheus does."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from pathlib import Path
from sys import executable

import redis

url, port = os.environ["RSTREAM_URL"], os.environ["USE_PORT"]
with redis.Redis.from_url(url) as client:
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "billing", id="0")
command = [str(Path(executable).with_name("rstream")), "exporter", "--port", port]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as exporter:
    assert exporter.stdout is not None
    said = exporter.stdout.readline()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        text = page.read().decode()
    exporter.terminate()
print(said, *re.findall(r"^rstream_(?:group_)?lag\S*\{.*", text, re.M))
