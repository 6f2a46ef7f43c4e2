"""The states of one exchange, and every move between them.

Theory of operation
-------------------
One client connection carries one exchange at a time. An exchange is two halves that run side by side, each
driven by the socket it reads:

* the **ask**: the request, read from the client and written to a pool (RFC 9112 sections 3, 6, 7);
* the **answer**: the response, read from the pool and written to the client (RFC 9112 sections 4, 6, 7).

The halves meet in few places, and those are the whole difficulty of a proxy:

* The answer may begin, and even end, before the ask is whole (RFC 9112 section 9.5). An answer that ends
first
  closes the client's connection: what is left of the ask could not be told from a next request.
* Only when both halves are DONE may the client's connection carry the next exchange and the pool's
  connection go back to the idle ones. Bytes that a client sends before that (pipelining, RFC 9112
  section 9.3.2) wait, in a bounded buffer, and are read in order.
* Before the first answer byte, an exchange whose ask was kept can start again elsewhere: ``AGAIN``. From HEAD
  on, a byte of this answer was seen; only a canary's 502-504, whose head is read and not forwarded, may
  still go ``AGAIN``.
* From BODY on the client holds a head. Trouble can no longer be an error answer; the connection is broken
  off, so that the client sees an incomplete message (RFC 9112 section 8) and not a short one.

``LINGER`` is how a connection with unread input ends: the answer is flushed, the sending side is shut,
and input is read and thrown away for a moment, since a close with unread bytes would reset the connection
and could destroy the answer on its way (RFC 9112 section 9.6).

States and events are plain integers, since the tables are consulted several times a request. A move that is
not in a table is a bug of the edge: looking it up raises ``KeyError``, and the shell breaks that one
connection off.
"""

from __future__ import annotations

from typing import Final

# The ask: what was read from the client.
IDLE: Final = 0  # between exchanges: nothing of a next request was read
ASK_HEAD: Final = 1  # some of a request head was read
ASK_BODY: Final = 2  # head forwarded (or waiting for a connection), body under way
ASK_DONE: Final = 3  # request whole
ASK_TUNNEL: Final = 4  # after 101: bytes, no messages
LINGER: Final = 5  # answered and shut; input is thrown away
CLOSED: Final = 6

# The answer: what was read from the pool.
NONE: Final = 10  # no exchange
DIALING: Final = 11  # endpoint chosen, its connection is being opened
WAITING: Final = 12  # ask (or its beginning) written, no answer byte read
ANSWER_HEAD: Final = 13  # some answer byte read, maybe interim answers forwarded; final head not yet
ANSWER_BODY: Final = 14  # final head forwarded
ANSWER_DONE: Final = 15  # answer whole, ask not yet
ANSWER_TUNNEL: Final = 16

# Events of the ask.
BYTES: Final = 20  # first bytes of a request
HEAD_ONLY: Final = 21  # a head without a body was accepted
HEAD_THEN_BODY: Final = 22  # a head was accepted, a body follows
BODY_END: Final = 23
OVER: Final = 24  # both halves done, the connection lives on
REFUSE: Final = 25  # the edge answered by itself, or the answer ended before the ask
SWITCH: Final = 26  # 101 Switching Protocols was forwarded
LOST: Final = 27  # the client's connection is gone, or is being closed

# Events of the answer.
DIAL: Final = 30
SEND: Final = 31  # the ask's first bytes were written to a pool's connection
FIRST_BYTE: Final = 32
FINAL_HEAD: Final = 33  # the final head was forwarded
ANSWER_END: Final = 34
AGAIN: Final = 35  # this attempt is void, another begins
DROP: Final = 36  # the exchange is over: both halves done, refused, broken off, or the client is gone

ASK: Final[dict[int, dict[int, int]]] = {
    IDLE: {BYTES: ASK_HEAD, REFUSE: LINGER, LOST: CLOSED},
    ASK_HEAD: {HEAD_ONLY: ASK_DONE, HEAD_THEN_BODY: ASK_BODY, REFUSE: LINGER, LOST: CLOSED},
    ASK_BODY: {BODY_END: ASK_DONE, REFUSE: LINGER, LOST: CLOSED},
    ASK_DONE: {OVER: IDLE, SWITCH: ASK_TUNNEL, REFUSE: LINGER, LOST: CLOSED},
    ASK_TUNNEL: {LOST: CLOSED},
    LINGER: {LOST: CLOSED},
    CLOSED: {LOST: CLOSED},
}

ANSWER: Final[dict[int, dict[int, int]]] = {
    NONE: {DIAL: DIALING, SEND: WAITING, DROP: NONE},
    DIALING: {SEND: WAITING, AGAIN: NONE, DROP: NONE},
    WAITING: {FIRST_BYTE: ANSWER_HEAD, AGAIN: NONE, DROP: NONE},
    ANSWER_HEAD: {FINAL_HEAD: ANSWER_BODY, SWITCH: ANSWER_TUNNEL, AGAIN: NONE, DROP: NONE},
    ANSWER_BODY: {ANSWER_END: ANSWER_DONE, DROP: NONE},
    ANSWER_DONE: {DROP: NONE},
    ANSWER_TUNNEL: {DROP: NONE},
}

NAMES: Final[dict[int, str]] = {
    value: name for name, value in globals().items() if isinstance(value, int) and name.isupper()
}
"""For messages and tests."""
