"""What is to be found out about one call: by which arms, how often, under which name."""

from __future__ import annotations

import msgspec

from comparator.comparison import SampleRef
from comparator.records import CaptureId
from proxy.link.values import Capture
from proxy.mirror.asks import NO_TENANT, SampleAsk
from proxy.mirror.seeds import is_control, is_timing, is_token_only
from proxy.mirror.settings import MirrorSettings


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but the call itself. Drawn before any arm runs, so that no outcome chooses its group."""

    capture_id: CaptureId
    request_id: str
    """Makes the seeds, and the draws."""
    tenant: str
    candidate: bool = True
    control: bool = False
    token_only: bool = False
    """Arms may be cut after a fork. Never together with ``control`` or ``timing``."""
    timing: bool = False
    """Arms run without logprobs."""
    replicates: int = 1
    """Seeds, where the call's temperature is above 0."""
    sample: SampleRef | None = None

    @property
    def own_limit(self) -> bool:
        """A frozen sample is asked with its own output limit, however little live copies may make."""
        return self.sample is not None


def question_of_capture(rollout: str, settings: MirrorSettings, capture: Capture) -> Question:
    """A client's request: every draw is a hash of its ID, so a replica of the judge draws the same."""
    name = capture.request_id
    control = is_control(rollout, name, settings.control_percent)
    timing = is_timing(rollout, name, settings.timing_percent)
    token_only = is_token_only(rollout, name, settings.token_only_percent)
    return Question(
        capture_id=CaptureId(capture.capture_id),
        request_id=name,
        tenant=capture.tenant,
        control=control,
        token_only=token_only and not control and not timing,
        timing=timing,
        replicates=settings.replicates,
    )


def question_of_sample(ask: SampleAsk, capture_id: str) -> Question:
    """A suite's: its passes are its replicates, so each is asked once."""
    return Question(
        capture_id=CaptureId(capture_id),
        request_id=ask.request_id,
        tenant=NO_TENANT,
        candidate=ask.candidate,
        control=ask.control,
        sample=ask.sample,
    )
