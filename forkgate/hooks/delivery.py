"""One request to one receiver, and what its answer means. Bounded in time and bytes; follows no redirect."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import aiohttp
import msgspec
import orjson

from forkgate.config.hooks import HookFormat, HookSection, url_fault
from forkgate.hooks.notices import Notice, slack_text
from forkgate.hooks.signing import DELIVERY_HEADER, EVENT_HEADER, SIGNATURE_HEADER, sign

MAX_ANSWER_BYTES = 65_536
MAX_WHY_CHARS = 300
AGAIN_STATUSES = frozenset({408, 425, 429})
"""Refusals that may be other ones a moment later; every 5xx is one too."""


class HookError(Exception):
    """A receiver did not take a notice: why. The URL is never in it, for it may be a secret."""


class AgainError(HookError):
    """It may take it a moment later."""


class FinalError(HookError):
    """It never will."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a ``before_step`` hook answered."""

    allow: bool
    reason: str = ""


class Address:
    """Where a hook is sent and what signs it, read once: a hook must not fail because a file went away."""

    def __init__(self, section: HookSection) -> None:
        """Raises FinalError: a file cannot be read, or holds no URL."""
        self.section = section
        try:
            url = section.url if section.url is not None else _text(section.url_file)
            self.secret = None if section.secret_file is None else _text(section.secret_file).encode()
            self._tls = (
                None if section.ca_file is None else ssl.create_default_context(cafile=section.ca_file)
            )
        except (OSError, UnicodeDecodeError, ssl.SSLError) as error:
            raise FinalError(f"hook {section.name}: a file of it cannot be read: {error}") from error
        if (fault := url_fault(url)) is not None:
            raise FinalError(f"hook {section.name}: url_file {fault}")
        if self.secret is not None and len(self.secret) < 16:
            raise FinalError(f"hook {section.name}: secret_file: under 16 bytes, use `openssl rand -hex 32`")
        self.url = url

    async def post(self, session: aiohttp.ClientSession, notice: Notice) -> bytes:
        """Send it once, and return the answer's body as far as it is looked at.

        Raises:
            AgainError, FinalError
        """
        body = self._body(notice)
        headers = {"content-type": "application/json", DELIVERY_HEADER: notice.id, EVENT_HEADER: notice.event}
        if self.secret is not None:
            headers[SIGNATURE_HEADER] = sign(self.secret, body, int(time.time()))
        try:
            async with asyncio.timeout(self.section.timeout_s):
                async with session.post(
                    self.url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._tls if self._tls is not None else True,
                ) as response:
                    if 200 <= response.status < 300:
                        return await _bounded(response.content)
                    raise _refused(response.status)
        except TimeoutError:
            raise AgainError(f"did not answer within {self.section.timeout_s:g} s") from None
        except aiohttp.ClientConnectorCertificateError:
            raise AgainError("its certificate is not trusted, see ca_file") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Its text may hold the URL.
            raise AgainError(f"could not be reached, or broke off: {type(error).__name__}") from None

    def _body(self, notice: Notice) -> bytes:
        if self.section.format is HookFormat.SLACK:
            return orjson.dumps({"text": slack_text(notice)})
        return msgspec.json.encode(notice)


def read_wish(body: bytes) -> Wish:
    """``{"allow": true|false, "reason": "..."}``. Raises FinalError: it is something else."""
    if len(body) > MAX_ANSWER_BYTES:
        raise FinalError(f"answered more than {MAX_ANSWER_BYTES} bytes")
    try:
        wish = msgspec.json.decode(body, type=Wish)
    except (msgspec.DecodeError, RecursionError):
        raise FinalError('answered neither {"allow": true} nor {"allow": false, "reason": ...}') from None
    return Wish(allow=wish.allow, reason=printable(wish.reason))


def printable(text: str) -> str:
    """Somebody else's words, safe for a terminal and a log, and short."""
    return "".join(one if one.isprintable() else " " for one in text)[:MAX_WHY_CHARS].strip()


def _refused(status: int) -> HookError:
    if 300 <= status < 400:
        return FinalError(f"answered {status}, a redirect, and none is followed: name its real URL")
    if status in AGAIN_STATUSES or status >= 500:
        return AgainError(f"answered {status}")
    return FinalError(f"answered {status}")


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """One byte more than is looked at, at most."""
    found = bytearray()
    while len(found) <= MAX_ANSWER_BYTES:
        part = await content.read(MAX_ANSWER_BYTES + 1 - len(found))
        if not part:
            break
        found += part
    return bytes(found)


def _text(file: str | None) -> str:
    assert file is not None
    return Path(file).read_text(encoding="utf-8").strip()
