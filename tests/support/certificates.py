"""Throw-away certificates for TLS tests, on disk as the edge reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificate:
    cert_file: str
    key_file: str


class Authority:
    """A certificate authority; its files lie in ``directory``."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self._ca = trustme.CA()
        self.cert_file = str(directory / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.cert_file)

    def issue(self, *names: str) -> Certificate:
        """A certificate for these host names and addresses; the first names its files."""
        issued = self._ca.issue_cert(*names)
        certificate = self._directory / f"{self._name}-{names[0]}.pem"
        key = certificate.with_suffix(".key")
        issued.private_key_pem.write_to_path(str(key))
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return Certificate(str(certificate), str(key))
