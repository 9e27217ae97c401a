"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificates(folder: Path) -> Path:
    """An authority (ca.pem), and certificates that it has signed: of a server and of a client at 127.0.0.1, and of a
    server elsewhere, other.example."""
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(folder, *new, "-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    for name, host in (("server", "IP:127.0.0.1"), ("client", "IP:127.0.0.1"), ("elsewhere", "DNS:other.example")):
        (folder / "names").write_text(f"subjectAltName={host}\n")
        _openssl(folder, *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        _openssl(folder, "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                 "-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    return folder


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)
