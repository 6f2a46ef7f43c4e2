"""How far a suite has come in its stage: which answers were seen, each of them once.

A suite runs anew at the start of each stage, and what it showed in an earlier one is no part of the new
answer: evidence of another stage starts a gate's state afresh, and what still trickles in of a stage that is
over is passed over.
"""

from __future__ import annotations

import msgspec

from comparator.comparison import SampleRef


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of one suite in one stage. Grows by :meth:`admit`; ids and bit masks, nothing else."""

    stage: str = ""
    digest: str = ""
    """Of the suite."""
    samples: int = 0
    """In the suite; 0 before its first answer."""
    passes: int = 0
    past: tuple[str, ...] = ()
    """Stages that are over."""
    seen: dict[str, int] = {}
    """By sample: a bit for each pass."""
    count: int = 0
    """Answers seen: the bits of :attr:`seen`."""

    @property
    def expected(self) -> int:
        """Answers that make the suite complete, an arm."""
        return self.samples * self.passes

    @property
    def complete(self) -> bool:
        """Every sample was seen in every pass."""
        return 0 < self.expected == self.count

    def admit(self, ref: SampleRef) -> Progress | None:
        """With one more answer; None when it is known already, of a stage that is over, or out of range.

        The caller drops what it kept when the answer's stage is another than :attr:`stage`.
        """
        here = self
        if (ref.stage, ref.digest) != (self.stage, self.digest):
            if ref.stage in self.past:
                return None
            past = self.past if self.stage in ("", ref.stage) else (*self.past, self.stage)
            here = Progress(
                stage=ref.stage, digest=ref.digest, samples=ref.samples, passes=ref.passes, past=past
            )
        bit = 1 << ref.passage if 0 <= ref.passage < here.passes else 0
        mask = here.seen.get(ref.sample_id, 0)
        if not bit or mask & bit or (not mask and len(here.seen) == here.samples):
            return None
        return msgspec.structs.replace(
            here, seen={**here.seen, ref.sample_id: mask | bit}, count=here.count + 1
        )

    def merge(self, other: Progress) -> Progress:
        """What either has seen, of one stage.

        Raises:
            ValueError: the two are about different stages or suites.
        """
        if not self.stage or not other.stage:
            return self if self.stage else other
        if (self.stage, self.digest) != (other.stage, other.digest):
            raise ValueError(
                f"stages {self.stage} and {other.stage} of suites {self.digest} and {other.digest} "
                "make no one state"
            )
        seen = {
            key: self.seen.get(key, 0) | other.seen.get(key, 0)
            for key in sorted(self.seen.keys() | other.seen.keys())
        }
        return msgspec.structs.replace(
            self,
            past=tuple(sorted({*self.past, *other.past})),
            seen=seen,
            count=sum(mask.bit_count() for mask in seen.values()),
        )

    def told(self, suite: str) -> str:
        """How far it is, for a verdict's reason."""
        if not self.samples:
            return f"suite {suite} has not begun"
        return f"suite {suite} at {self.stage}: {self.count} of {self.expected} answers compared"
