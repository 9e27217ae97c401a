"""The extra `console`: a page of the web console."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

rstream = Path(sys.executable).with_name("rstream")
process = subprocess.Popen([rstream, "console", "--port", "0"], stderr=subprocess.PIPE, text=True)
assert process.stderr is not None
try:
    address = re.search("http://[0-9.:]+/", process.stderr.readline())
    assert address is not None
    page = urllib.request.Request(address[0], headers={"accept": "text/html"})
    with urllib.request.urlopen(page, timeout=20) as answer:
        print(answer.read().decode())
finally:
    process.terminate()
assert process.wait(20) == 0
