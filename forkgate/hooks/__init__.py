"""Who is told, and who is asked: webhooks and chat, beside the judge and never in its way.

Theory of operation. :class:`Hooks` looks at the rollouts' states after whatever may have changed one
(``look``), and makes a :class:`Notice` of each difference. A notice goes into a bounded queue of each
receiver that wants it; a task of that receiver's own delivers it, with retries, for a bounded time. ``look``
never waits and never raises: a rollback is on its way before anybody is told of it, and a receiver that hangs
costs a place in its own queue.

A ``before_step`` hook is *asked* (:meth:`Hooks.ask`): it may refuse a step, and a step that it does not
answer waits, unless its configuration says otherwise. Nothing asks before a rollback, a pause or an abort.

No notice holds a prompt, a token or a text of anybody: it is made of names, numbers and reasons of gates.

=============  ==========================================================================
``notices``    what can be told, as values; differences of two states; words for a chat
``signing``    the signature, and how a receiver checks it
``delivery``   one request to one receiver, bounded in every direction
``receiver``   one receiver's queue, retries and counts
``hooks``      all receivers of one judge
``steps``      when a step is asked about, and what becomes of it meanwhile
=============  ==========================================================================
"""

from forkgate.hooks.hooks import Hooks
from forkgate.hooks.notices import Notice
from forkgate.hooks.signing import BadSignature, verify
from forkgate.hooks.steps import StepHooks

__all__ = ["BadSignature", "Hooks", "Notice", "StepHooks", "verify"]
