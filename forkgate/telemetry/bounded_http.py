"""An HTTP session whose answers are small and come in time, whoever gives them.

``requests`` takes its timeout for each read, so a collector that trickles an endless answer would hold an
export, and memory, for ever.
"""

from __future__ import annotations

import time
from typing import Any

import requests

MOST_ANSWER_BYTES = 64 << 10
"""An OTLP answer is empty, or says in words how many records were refused."""
_PIECE_BYTES = 4_096


class BoundedSession(requests.Session):
    """Reads no more than that of an answer, and no longer than ``timeout_s`` seconds."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """As ``requests`` does, but ``REQUESTS_CA_BUNDLE`` takes no configured authority's place."""
        chosen = self.verify if verify is None else verify
        return super().merge_environment_settings(url, proxies, stream, chosen, cert)

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """As ``requests`` does.

        Raises:
            requests.exceptions.ContentDecodingError: the answer is larger than an answer may be.
            requests.exceptions.ReadTimeout: it was not whole in time.
        """
        end_s = time.monotonic() + self._timeout_s
        response = super().send(request, **{**kwargs, "stream": True})
        parts: list[bytes] = []
        size = 0
        try:
            while piece := response.raw.read1(_PIECE_BYTES, decode_content=True):
                size += len(piece)
                if size > MOST_ANSWER_BYTES:
                    raise requests.exceptions.ContentDecodingError(
                        f"the collector's answer is over {MOST_ANSWER_BYTES} bytes"
                    )
                if time.monotonic() > end_s:
                    raise requests.exceptions.ReadTimeout(f"no whole answer in {self._timeout_s:g} s")
                parts.append(piece)
        except BaseException:
            response.close()
            raise
        response._content = b"".join(parts)
        response._content_consumed = True
        response.close()
        return response
