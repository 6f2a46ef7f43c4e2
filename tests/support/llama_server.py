"""Real llama-servers, one a set of flags."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from typing import IO, Any

from tests.support.ports import free_port

MODEL = "smollm2"
SLOTS = 2
CONTEXT_TOKENS = 1024
"""Of one slot."""
START_S = 600.0
PLAIN: tuple[str, ...] = ()
QUANTISED_CACHE = ("-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on")
"""Keys and values of 8 bits: another environment, the same weights."""


class LlamaServers:
    """Started when first asked for and kept to the end: half a second and 0.3 GB each."""

    def __init__(self, binary: str, gguf: pathlib.Path) -> None:
        self._binary = binary
        self._gguf = gguf
        self._running: dict[tuple[str, ...], tuple[str, subprocess.Popen[bytes], IO[Any]]] = {}

    def url(self, flags: tuple[str, ...] = PLAIN) -> str:
        if flags not in self._running:
            self._running[flags] = self._start(flags)
        return self._running[flags][0]

    def stop(self) -> None:
        for _, process, log in self._running.values():
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()
        self._running.clear()

    def _start(self, flags: tuple[str, ...]) -> tuple[str, subprocess.Popen[bytes], IO[Any]]:
        port = free_port()
        # Started inside the model's folder, so that /props names no path of this machine.
        command = [
            self._binary,
            "-m",
            self._gguf.name,
            "-a",
            MODEL,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        # One thread: two of them wait for each other by spinning, which crawls on a machine that is shared.
        command += ["-t", "1", "-np", str(SLOTS), "-c", str(SLOTS * CONTEXT_TOKENS), "--metrics", *flags]
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop(), after the process that writes it
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._gguf.parent)
        url = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + START_S
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                process.kill()
                process.wait()
                log.seek(0)
                tail = log.read()[-4000:].decode(errors="replace")
                log.close()
                raise AssertionError(f"llama-server {flags} did not start, {process.returncode}:\n{tail}")
            time.sleep(0.1)
        return url, process, log


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
