"""What all arms of a question are to run: one prompt in token IDs, one set of explicit parameters.

The baseline's encoding is the one that counts. The candidate is asked as well, to catch another tokenizer or
chat template, which no comparison of tokens could tell from a difference of numbers. A control is the
baseline once more, and takes what the baseline's first endpoint made of the call.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from comparator.records import Fact, Sampling
from engines.base import (
    Call,
    CannotEncode,
    Capability,
    Encoding,
    EngineError,
    EngineInvalid,
    EngineRefused,
    EngineTimeout,
)
from engines.calls import sampling_said
from proxy.ledger import DropReason
from proxy.mirror.errors import Dropped
from proxy.mirror.pools import ShadowEndpoint, logprobs_depth, note_end
from proxy.mirror.question import Question
from proxy.mirror.settings import MirrorSettings

_LOG = logging.getLogger(__name__)

_OWN_TEMPLATE = Fact(unknown="the request went as itself; the engine applied its own template")
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_OWN_DEFAULTS = Fact(unknown="the request went as itself; what it leaves out is each engine's own default")


class ArmEncoding(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's own view of the prompt."""

    token_ids: tuple[int, ...]
    facts: dict[str, Fact]


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """A call, ready to run on all arms."""

    call: Call
    sampling: Sampling
    """Its seed is not set yet: each replicate has one of its own."""
    as_tokens: bool
    baseline: ArmEncoding
    candidate: ArmEncoding
    """The baseline's where no candidate is asked."""
    candidate_error: EngineError | None = None
    """The candidate refused or failed the call already here."""

    @property
    def mismatch(self) -> bool:
        return self.baseline.token_ids != self.candidate.token_ids


class Encoder:
    """Encodes the call of one question for the endpoints that its arms will run on."""

    def __init__(
        self,
        settings: MirrorSettings,
        question: Question,
        baseline: ShadowEndpoint,
        candidate: ShadowEndpoint | None,
    ) -> None:
        self._settings = settings
        self._question = question
        self._baseline = baseline
        self._candidate = candidate
        self._asked = (baseline,) if candidate is None else (baseline, candidate)

    async def encode(self, call: Call) -> Encoded:
        """Ask baseline and candidate, side by side.

        Raises:
            Dropped: the baseline cannot, or an endpoint lacks what a comparison needs.
        """
        self._require(Capability.TOKEN_OUT, "gives no token IDs")
        theirs = asyncio.create_task(self._ask_candidate(call), name="candidate encode")
        try:
            encoding = await self._ask(self._baseline, call)
            candidate = await theirs
        except CannotEncode as error:
            if not error.goes_as_itself:
                raise Dropped(DropReason.UNSUPPORTED, str(error)) from error
            return self._as_itself(call)
        except EngineRefused as error:
            raise Dropped(DropReason.UNSUPPORTED, f"the baseline refuses it: {error}") from error
        except EngineError as error:
            raise Dropped(DropReason.BASELINE_UNAVAILABLE, str(error)) from error
        finally:
            theirs.cancel()
            await asyncio.gather(theirs, return_exceptions=True)
        self._require(Capability.TOKEN_IN, "takes no prompt token IDs")
        return self._as_tokens(call, encoding, candidate)

    async def _ask(self, endpoint: ShadowEndpoint, call: Call) -> Encoding:
        timeout_s = self._settings.arm_timeout_s
        where = endpoint.engine.base_url
        try:
            async with asyncio.timeout(timeout_s):
                return await endpoint.engine.encode(call)
        except TimeoutError as error:
            raise EngineTimeout(where, f"the call was not encoded within {timeout_s:g} s") from error
        except EngineError as error:
            note_end(endpoint, error)
            raise
        except Exception as error:  # an adapter that raises anything else has a bug
            _LOG.exception("not an engine error", extra={"endpoint": where})
            raise EngineInvalid(where, f"encode: {type(error).__name__}: {error}") from error

    async def _ask_candidate(self, call: Call) -> Encoding | EngineError | None:
        if self._candidate is None:
            return None
        probe = self._candidate.probe
        if probe is not None and Capability.ENCODE not in probe.has:
            why = probe.missing.get(Capability.ENCODE, "its probe found no way to")
            return CannotEncode(self._candidate.engine.base_url, why, goes_as_itself=False)
        try:
            return await self._ask(self._candidate, call)
        except EngineError as error:
            return error

    def _as_tokens(self, call: Call, encoding: Encoding, theirs: Encoding | EngineError | None) -> Encoded:
        sampling = self._sampling(call, encoding.sampling)
        failed: EngineError | None = None
        candidate = ArmEncoding(token_ids=encoding.token_ids, facts={})
        if isinstance(theirs, Encoding):
            facts = {"template_sha256": theirs.template_sha256, **_own_defaults(encoding, theirs)}
            candidate = ArmEncoding(token_ids=theirs.token_ids, facts=facts)
        elif theirs is not None:
            unknown = Fact(unknown=f"the candidate encoded nothing: {theirs}")
            candidate = ArmEncoding(
                token_ids=encoding.token_ids, facts={"template_sha256": unknown, "own_encoding": unknown}
            )
            failed = None if isinstance(theirs, CannotEncode) else theirs
        return Encoded(
            call=call,
            sampling=sampling,
            as_tokens=True,
            baseline=ArmEncoding(
                token_ids=encoding.token_ids, facts={"template_sha256": encoding.template_sha256}
            ),
            candidate=candidate,
            candidate_error=failed,
        )

    def _as_itself(self, call: Call) -> Encoded:
        try:
            said = sampling_said(call, room_tokens=self._settings.max_tokens)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise Dropped(DropReason.UNSUPPORTED, f"sampling parameters: {error}") from error
        facts = {"template_sha256": _OWN_TEMPLATE, "sampling_defaults": _OWN_DEFAULTS}
        arm = ArmEncoding(token_ids=(), facts=facts)
        return Encoded(
            call=call, sampling=self._sampling(call, said), as_tokens=False, baseline=arm, candidate=arm
        )

    def _sampling(self, call: Call, effective: Sampling) -> Sampling:
        settings = self._settings
        if effective.temperature > 0:
            self._require(
                Capability.SEED,
                f"honours no seed, and at temperature {effective.temperature:g} two runs differ by chance",
            )
        max_tokens = effective.max_tokens
        if not (self._question.own_limit and _says_limit(call)):
            max_tokens = min(max_tokens, settings.max_tokens)
        if max_tokens < 1:
            raise Dropped(DropReason.UNSUPPORTED, f"max_tokens {max_tokens} leaves nothing to compare")
        return msgspec.structs.replace(
            effective,
            max_tokens=max_tokens,
            min_tokens=min(effective.min_tokens, max_tokens),
            seed=0,
            logprobs=0
            if self._question.timing
            else logprobs_depth(settings.logprobs, [endpoint.probe for endpoint in self._asked]),
        )

    def _require(self, capability: Capability, lack: str) -> None:
        """Raises Dropped when a probed endpoint cannot do what a comparison needs."""
        for endpoint in self._asked:
            probe = endpoint.probe
            if probe is not None and capability not in probe.has:
                why = probe.missing.get(capability, "its probe found none")
                raise Dropped(
                    DropReason.UNSUPPORTED, f"{endpoint.engine.base_url} {lack} ({capability}: {why})"
                )


def _says_limit(call: Call) -> bool:
    return any(call.body.get(name) is not None for name in _LIMITS)


def _own_defaults(baseline: Encoding, candidate: Encoding) -> dict[str, Fact]:
    """Where the candidate would have sampled otherwise, left to itself: live traffic will feel that."""
    differing = {
        name: [getattr(baseline.sampling, name), getattr(candidate.sampling, name)]
        for name in Sampling.__struct_fields__
        if name not in ("seed", "logprobs")
        and getattr(baseline.sampling, name) != getattr(candidate.sampling, name)
    }
    return {"own_defaults_differ": Fact(value=differing)} if differing else {}
