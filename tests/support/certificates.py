"""Throw-away certificates for TLS tests, made with the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    cert_file: str
    key_file: str


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """A certificate authority in ``directory``."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self.cert_file = str(directory / f"{name}.crt")
        self._key_file = str(directory / f"{name}.key")
        _openssl(
            *(
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ),
            *("-keyout", self._key_file, "-out", self.cert_file, "-subj", f"/CN={name}"),
        )

    def issue(self, name: str, *alternatives: str) -> Certificate:
        """A certificate for these names, e.g. ``DNS:localhost`` or ``IP:127.0.0.1``."""
        at = self._directory / f"{self._name}-{name}"
        extensions = at.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={','.join(alternatives)}\n" if alternatives else "")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{at}.key", "-out", f"{at}.csr", "-subj", f"/CN={name}"),
        )
        _openssl(
            *(
                "x509",
                "-req",
                "-in",
                f"{at}.csr",
                "-CA",
                self.cert_file,
                "-CAkey",
                self._key_file,
                "-CAcreateserial",
            ),
            *("-days", "2", "-out", f"{at}.crt", "-extfile", str(extensions)),
        )
        return Certificate(f"{at}.crt", f"{at}.key")
