"""Files that browsers send for an import. Each stays as long as its change can be made, with some time to begin."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from starlette.exceptions import HTTPException
from starlette.requests import Request

from spark_streams.connector.errors import OptionError, TakenError
from spark_streams.operations.console.access import PLAN_SECONDS
from spark_streams.operations.console.bounds import IMPORT_BYTES, LOGIN_BYTES, UPLOADS
from spark_streams.operations.transfer.entry_files import is_parquet

_PREFIX = "rstream-console-"
_HEAD = re.compile(rb'--([^\r\n]+)\r\n[^\r\n]*; filename="([^"\r\n]*)"(?:\r\n[^\r\n]+)*\r\n\r\n')


class Uploads:
    """Files in a folder that only this user can read. It is removed when the console ends."""

    @cached_property
    def _folder(self) -> TemporaryDirectory[str]:
        return TemporaryDirectory(prefix=_PREFIX)

    def shown(self, text: str) -> str:
        """Return a text with the browser's names of files, in the place of ours."""
        return re.sub(rf"[^\s'\"]*/{_PREFIX}\w+/[0-9a-f]{{16}}/", "", text)

    async def receive(self, request: Request) -> Path:
        """Return the file of a form that has nothing else. All of the form is read, so that the browser shows the
        answer. Raises OptionError, TakenError, HTTPException if the file is too large."""
        folder = Path(self._folder.name) / secrets.token_hex(8)
        if len(list(folder.parent.iterdir())) >= UPLOADS:
            raise TakenError(f"{UPLOADS} files wait for their import; try again in ten minutes")
        folder.mkdir()
        asyncio.get_running_loop().call_later(PLAN_SECONDS + 60, partial(shutil.rmtree, folder, True))
        received, size, head = folder / "received", 0, b""
        with received.open("w+b") as form:
            async for part in request.stream():
                size += len(part)
                head += part[: LOGIN_BYTES - len(head)]
                if size <= IMPORT_BYTES:
                    form.write(part)
            if size > IMPORT_BYTES:
                raise HTTPException(413, f"the file is larger than {IMPORT_BYTES >> 20} MB; use rstream import")
            match = _HEAD.match(head)
            name = "" if match is None else re.sub(r"[^A-Za-z0-9._-]", "_", match[2].decode("utf-8", "replace"))[-100:]
            is_parquet(name)  # or it is refused
            tail = b"" if match is None else b"\r\n--" + match[1] + b"--\r\n"
            form.seek(-min(size, len(tail)), 2)
            if match is None or form.read() != tail:
                raise OptionError("the form is not one with a single file; use the page of a stream")
            form.truncate(size - len(tail))
            form.seek(match.end())
            with (folder / name).open("wb") as file:
                shutil.copyfileobj(form, file)
        received.unlink()
        return folder / name
