"""A server of canned answers, for what asks an engine's endpoints. It runs in a thread."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

Answer = bytes | str | dict[str, Any] | tuple[int, bytes]


@contextlib.contextmanager
def canned(answers: Mapping[str, Answer], key: str | None = None) -> Iterator[str]:
    """Serve ``answers`` by path, query included; anything else is 404, and without ``key`` all is 401."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = answers.get(self.path, (404, b"{}"))
            if key is not None and self.headers["authorization"] != f"Bearer {key}":
                told = (401, b"{}")
            status, body = told if isinstance(told, tuple) else (200, told)
            if isinstance(body, dict):
                body = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            if status == 302:
                self.send_header("location", body.decode())
            self.end_headers()
            with contextlib.suppress(OSError):  # whoever asked has heard enough
                self.wfile.write(body.encode() if isinstance(body, str) else body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
